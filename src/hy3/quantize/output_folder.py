"""``OutputFolder``: who may write OUT, what is finished in it, and what may not be there.

One process at a time holds OUT, by a lock that dies with it. The resume state is written before
the first shard and after each one; the manifest is written last, and only then the state goes. So
a folder is empty, resumable or complete after a crash at any point.
"""

from __future__ import annotations

import fcntl
import os
import threading
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from hy3.checkpoint.manifest import MANIFEST_NAME, Manifest, Parameters, read_manifest
from hy3.checkpoint.writer import (
    TEMPORARY_SUFFIX,
    sync_folder,
    temporary_path,
    write_file_durably,
)
from hy3.errors import EnvironmentFault, InputError
from hy3.quantize.journal import JOURNAL_SUFFIX, journal_path
from hy3.quantize.plan import Plan
from hy3.quantize.resume import (
    RESUME_NAME,
    FinishedShard,
    ResumeState,
    read_resume_state,
    stamp_of,
)

LOCK_NAME = ".hy3_lock"


class OutputFolder:
    """OUT while this process owns it; leaving the context releases the lock."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path, self.plan = path, plan
        self._lock_descriptor = -1
        self._state = ResumeState(plan.parameters, plan.stamps, {})
        self._state_lock = threading.Lock()

    def __enter__(self) -> OutputFolder:
        make_folder(self.path)
        try:
            self._lock_descriptor = _lock(self.path / LOCK_NAME)
        except OSError as error:
            raise _unusable(self.path, error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Only an unfinished folder keeps its lock file: neither a complete one nor a stranger's.
        if not (self.path / RESUME_NAME).exists():
            (self.path / LOCK_NAME).unlink(missing_ok=True)
        os.close(self._lock_descriptor)

    def finished_manifest(self) -> Manifest | None:
        """The manifest if OUT is complete; InputError if it is of other parameters."""
        manifest = read_manifest(self.path)
        if manifest is not None:
            self._check_parameters(manifest.parameters)
        return manifest

    def resume(self) -> dict[str, FinishedShard]:
        """The shards that need not be made again; starts the state if there is none.

        Raises:
            InputError: OUT is of other parameters or another source, or holds something else.
        """
        state = read_resume_state(self.path)
        if state is None:
            self._check_empty()
        else:
            self._check_parameters(state.parameters)
            self._check_source(state)
            kept = {name: shard for name, shard in state.shards.items() if self._holds(name, shard)}
            self._state = replace(self._state, shards=kept)
        self._sort_leftovers()
        self._write_state()
        return dict(self._state.shards)

    def record(self, name: str, shard: FinishedShard) -> None:
        """Remember one more finished shard, durably; its journal goes."""
        with self._state_lock:
            shards = {**self._state.shards, name: shard}
            self._state = replace(self._state, shards=shards)
            self._write_state()
        journal_path(self.path / name).unlink(missing_ok=True)

    def shards(self) -> dict[str, FinishedShard]:
        """What is finished, in the plan's order."""
        return {name: self._state.shards[name] for name in self.plan.shards}

    def complete(self, manifest: Manifest) -> None:
        """Write the manifest and drop what only an unfinished folder needs."""
        write_file_durably(self.path / MANIFEST_NAME, manifest.encode())
        self.forget_state()

    def forget_state(self) -> None:
        """Remove what only an unfinished folder needs."""
        for journal in self.path.glob(f"*{JOURNAL_SUFFIX}"):
            journal.unlink()
        (self.path / RESUME_NAME).unlink(missing_ok=True)
        sync_folder(self.path)

    def _sort_leftovers(self) -> None:
        """Keep what unfinished shards can go on from, and nothing else that is unfinished."""
        kept: set[Path] = set()
        for name in self.plan.shards.keys() - self._state.shards.keys():
            shard = self.path / name
            temporary, journal = temporary_path(shard), journal_path(shard)
            if not journal.exists():
                continue
            # Renamed, but the crash came before it was recorded: its journal holds all of it.
            if shard.exists() and not temporary.exists():
                shard.rename(temporary)
            kept |= {temporary, journal}
        for suffix in (TEMPORARY_SUFFIX, JOURNAL_SUFFIX):
            for leftover in set(self.path.glob(f"*{suffix}")) - kept:
                leftover.unlink()

    def _write_state(self) -> None:
        write_file_durably(self.path / RESUME_NAME, self._state.encode())

    def _check_empty(self) -> None:
        # A crash before the first state can leave these two.
        harmless = {LOCK_NAME, RESUME_NAME + TEMPORARY_SUFFIX}
        strangers = sorted(set(os.listdir(self.path)) - harmless)
        if strangers:
            raise InputError(
                f"is not empty: it holds {strangers[0]!r}",
                hint="name a new or empty folder",
                where=str(self.path),
            )

    def _check_parameters(self, found: Parameters) -> None:
        wanted = self.plan.parameters
        for key, value in vars(found).items():
            if value != vars(wanted)[key]:
                raise InputError(
                    f"holds work with {key} {value!r}, not {vars(wanted)[key]!r}",
                    hint="name an empty folder, or go on with the options it was begun with",
                    where=str(self.path),
                )

    def _check_source(self, state: ResumeState) -> None:
        stamps = self.plan.stamps
        for name in sorted(set(state.source) | set(stamps)):
            if state.source.get(name) != stamps.get(name):
                raise InputError(
                    f"was begun from another source: {name} differs in size or time",
                    hint="name an empty folder",
                    where=str(self.path),
                )

    def _holds(self, name: str, shard: FinishedShard) -> bool:
        path = self.path / name
        return path.exists() and stamp_of(path) == shard.stamp


def make_folder(path: Path) -> None:
    """Make OUT if it is not there; InputError when something else bears its name."""
    try:
        missing = [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for each in missing:
            sync_folder(each.parent)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(
            "is not a folder, or lies in something that is none",
            hint="name a new or empty folder",
            where=str(path),
        ) from error
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(
        f"cannot be used ({error.strerror})",
        hint="name a folder that can be written to",
        where=str(path),
    )


def _lock(path: Path) -> int:
    """An exclusive lock on a file that still bears its name; EnvironmentFault if it is held."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise EnvironmentFault(
                "is being written by another process",
                hint="wait for it, or name another folder",
                where=str(path.parent),
            ) from error
        # The holder may have removed the file between our open and its release.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)

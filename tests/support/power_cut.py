"""What a disk may hold after a power cut: the folder after some calls, less what was not flushed.

Data that was not flushed since may be there, missing or partly there, page by page, and the file
as long as it was told to be. Names that were made, changed or removed since the folder's last flush
may or may not be, each by itself. That is more than any one file system does.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hy3.errors import InputError
from hy3.quantize.journal import JOURNAL_SUFFIX
from hy3.quantize.output_folder import LOCK_NAME
from hy3.quantize.resume import RESUME_NAME
from hy3.quantize.verify import verify
from support.os_calls import Call, watching
from support.quantizing import run, tree

UNFINISHED = (".tmp", JOURNAL_SUFFIX, LOCK_NAME, RESUME_NAME)  # how their names end
_PAGE_BYTES = 4096
# What becomes of things that were not flushed: each is kept with this chance.
CHANCES = (0.0, 1.0, 0.5)


@dataclass
class _File:
    flushed: bytes = b""
    unflushed: list[Call] = field(default_factory=list)

    def flush(self) -> None:
        self.flushed = self.after(random.Random(0), 1.0)
        self.unflushed = []

    def after(self, chance: random.Random, kept: float) -> bytes:
        """The content when of what was not flushed each page is kept with chance ``kept``."""
        content = bytearray(self.flushed)
        for call in self.unflushed:
            if call.kind == "cut":
                if chance.random() < kept:
                    content = content[: call.offset].ljust(call.offset, b"\0")
                continue
            end = call.offset + len(call.data)
            if chance.random() < max(kept, 0.5 if kept else 0):  # the size, without its data
                content = content.ljust(end, b"\0")
            for start in range(0, len(call.data), _PAGE_BYTES):
                if chance.random() < kept:
                    page = call.data[start : start + _PAGE_BYTES]
                    place = call.offset + start
                    content = content.ljust(place + len(page), b"\0")
                    content[place : place + len(page)] = page
        return bytes(content)


@dataclass
class Disk:
    """A folder as the calls leave it; ``names`` are what is surely there."""

    names: dict[str, _File] = field(default_factory=dict)
    current: dict[str, _File] = field(default_factory=dict)
    unflushed: list[tuple[str, str, _File | None]] = field(default_factory=list)

    def do(self, call: Call) -> None:
        """One more call."""
        if call.kind == "create":
            self._change(call.kind, call.name, _File())
        elif call.kind in ("write", "cut"):
            self.current[call.name].unflushed.append(call)
        elif call.kind == "fsync":
            self.current[call.name].flush()
        elif call.kind == "rename":
            self._change(call.kind, call.target, self.current[call.name], call.name)
        elif call.kind == "unlink":
            self._change(call.kind, call.name, None)
        elif call.kind == "fsync_folder":
            self.names, self.unflushed = dict(self.current), []

    def _change(self, kind: str, name: str, file: _File | None, old: str = "") -> None:
        self.unflushed.append((name, old, file))
        _apply(self.current, name, old, file)

    def after_cut(self, chance: random.Random, kept: float) -> dict[str, bytes]:
        """File name -> content."""
        names = dict(self.names)
        for name, old, file in self.unflushed:
            if chance.random() < kept:
                _apply(names, name, old, file)
        return {name: file.after(chance, kept) for name, file in names.items()}


def _apply(names: dict[str, _File], name: str, old: str, file: _File | None) -> None:
    if old and names.get(old) is file:
        del names[old]
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file


def cuts(
    calls: Sequence[Call], start: Path | None, step: int, seed: int
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Every ``step``-th prefix of ``calls`` under each of CHANCES: what was chosen, the folder.

    ``start`` is a folder that was there before, wholly on disk.
    """
    disk = Disk()
    for path in start.iterdir() if start else ():
        disk.current[path.name] = disk.names[path.name] = _File(path.read_bytes())
    chance = random.Random(seed)
    for number, call in enumerate(calls, 1):
        disk.do(call)
        if number % step == 0 or number == len(calls):
            for kept in CHANCES:
                what = f"after call {number} ({call.kind} {call.name}), {kept} of the rest kept"
                yield what, disk.after_cut(chance, kept)


def rebuild(folder: Path, files: dict[str, bytes]) -> None:
    """Write the folder as the disk holds it."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def everything(call: Call) -> bool:
    return True


def record(source: Path, out: Path, wanted: Callable[[Call], bool] = everything) -> list[Call]:
    """The calls of a run with two workers that leaves out what is not ``wanted``."""
    calls: list[Call] = []

    def watch(call: Call, do: Callable[[], Any]) -> Any:
        if not wanted(call):
            return None
        calls.append(call)
        return do()

    with watching(out, watch):
        run(source, out, workers=2)
    return calls


def verifies(folder: Path) -> bool:
    try:
        return verify(folder).ok
    except InputError:
        return False


def check_cuts(
    source: Path,
    expected: dict[str, str],
    calls: list[Call],
    work: Path,
    step: int,
    start: Path | None = None,
) -> int:
    """Rebuild, look, verify, rerun and compare for every ``step``-th prefix of the calls.

    Returns how many folders there were.
    """
    checked = 0
    for what, files in cuts(calls, start, step, seed=step):
        rebuild(work, files)
        for name, digest in tree(work).items():
            if not name.endswith(UNFINISHED):
                assert digest == expected.get(name), f"{name} looks finished {what}"
        if "hy3_manifest.json" in files:
            assert expected.keys() <= files.keys(), f"looks complete {what}"
        elif "config.json" in files and verifies(work):
            assert expected.keys() - files.keys() == {"hy3_manifest.json"}, f"verifies {what}"
        run(source, work, workers=1)
        assert tree(work) == expected, what
        shutil.rmtree(work)
        checked += 1
    return checked

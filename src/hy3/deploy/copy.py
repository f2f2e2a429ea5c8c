"""``copy``: a checkpoint to another node with rsync, resumed after a cut, proved on arrival.

Files go in several streams, the largest first, each stream one rsync: what has arrived stays, and
a rerun sends the rest. Afterwards every hash of the manifest is taken on the node itself.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hy3.checkpoint.file_hash import FileHash, hash_file
from hy3.checkpoint.manifest import MANIFEST_NAME, read_manifest
from hy3.errors import CheckFailed, EnvironmentFault, InputError
from hy3.nodes.engine_process import engines_on
from hy3.nodes.node import HERE, Node
from hy3.units import format_bytes

_SECONDS_WITHOUT_DATA = 30
_TURN_SECONDS = 0.5
_HASH_BYTES_S = 100e6  # a slow disk; only for how long to wait
# rsync's running count of bytes: "  1,234,567  45%  12.34MB/s".
_COUNT = re.compile(rb"^\s*([\d,]+)\s+\d+%")


@dataclass(frozen=True)
class CopyResult:
    """What a copy did."""

    node: str
    files: int
    nbytes: int  # of the checkpoint
    seconds: float  # of the transfer
    sent_bytes: int  # over the link, less where a rerun went on


class _Transfer:
    """What the streams share: a count of what they sent, and their end. Safe with threads."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance, self._lock = advance, threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ended = False
        self.total = 0

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """A process with pipes, in a group with its ssh; none outlives the transfer."""
        pipe = subprocess.PIPE
        with self._lock:
            process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, process_group=0
            )
            self._processes.append(process)
        if self._ended:
            self.end()
        return process

    def end(self) -> None:
        """Stop every process, those to come as well: none goes on when nobody waits for it."""
        with self._lock:
            self._ended = True
            for process in self._processes:
                with suppress(ProcessLookupError):  # it has just ended
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGTERM)

    def add(self, count: int) -> None:
        """``count`` more bytes."""
        with self._lock:
            self.total += count
            self._advance(count)


def copy(
    folder: Path, node: Node, target: str, streams: int, advance: Callable[[int], None]
) -> CopyResult:
    """Send ``folder`` to ``target`` on a node and check every hash there.

    Raises:
        InputError: the folder is no finished checkpoint of ours.
        EnvironmentFault: a model is being served, rsync is missing, or the link broke.
        CheckFailed: what arrived is not what was sent.
    """
    files = files_to_send(folder)
    _refuse_while_serving(node)
    if shutil.which("rsync") is None:
        raise EnvironmentFault("rsync is not installed", "install it here and there", "PATH")
    node.run("mkdir", "-p", "--", target)
    _need_room(node, target, files)
    start = time.monotonic()
    transfer = _Transfer(advance)
    with ThreadPoolExecutor(streams) as pool:
        try:
            jobs = [
                pool.submit(_stream, folder, names, node, target, transfer)
                for names in share_out(files, streams)
            ]
            _wait_for(jobs)
        except BaseException:
            transfer.end()
            raise
    seconds = time.monotonic() - start
    _prove(folder, node, target, files)
    nbytes = sum(each.size_bytes for each in files.values())
    return CopyResult(node.name, len(files), nbytes, seconds, transfer.total)


def _wait_for(jobs: Iterable[Future[None]]) -> None:
    """Until all are done or one has failed, in turns: a signal does not always end a wait."""
    left = set(jobs)
    while left:
        done, left = wait(left, timeout=_TURN_SECONDS, return_when=FIRST_COMPLETED)
        for job in done:
            job.result()


def files_to_send(folder: Path) -> dict[str, FileHash]:
    """Every file of the manifest with its hash, and the manifest itself."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise InputError(
            f"holds no {MANIFEST_NAME}, so nothing could be proved on arrival",
            hint="copy what hy3 quantize has finished",
            where=str(folder),
        )
    for name, wanted in manifest.outputs.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != wanted.size_bytes:
            raise CheckFailed(
                "is missing or has another size than the manifest says",
                hint="hy3 verify says what is wrong with the folder",
                where=str(path),
            )
    return manifest.outputs | {MANIFEST_NAME: hash_file(folder / MANIFEST_NAME)}


def share_out(files: dict[str, FileHash], streams: int) -> list[list[str]]:
    """Names for each stream, evenly by bytes; the manifest ends the last, so it arrives late."""
    shares: list[list[str]] = [[] for _ in range(streams)]
    loads = [0] * streams
    largest_first = sorted(files, key=lambda name: (-files[name].size_bytes, name))
    for name in largest_first:
        if name != MANIFEST_NAME:
            least = loads.index(min(loads))
            shares[least].append(name)
            loads[least] += files[name].size_bytes
    shares[loads.index(max(loads))].append(MANIFEST_NAME)
    return [share for share in shares if share]


def _refuse_while_serving(node: Node) -> None:
    for where, each in (("this machine", HERE), (node.name, node)):
        if found := engines_on(each):
            raise EnvironmentFault(
                f"a model is being served there ({found[0][:80]})",
                hint="stop it first: a copy fills the page cache that the model lives from",
                where=where,
            )


def _need_room(node: Node, target: str, files: dict[str, FileHash]) -> None:
    """Refuse what cannot fit beside what has arrived before."""
    script = f"cd -- {shlex.quote(target)} && stat -f -c '%a %S' . && stat -c '%s %n' -- *; true"
    room, *there = node.run("sh", "-c", script).splitlines() or ["0 0"]
    blocks, block_bytes = map(int, room.split())
    free = blocks * block_bytes
    sizes = {name: int(size) for size, _, name in (line.partition(" ") for line in there)}
    missing = sum(max(0, each.size_bytes - sizes.get(name, 0)) for name, each in files.items())
    if missing > free:
        raise EnvironmentFault(
            f"{format_bytes(missing)} are still to be sent, {format_bytes(free)} are free there",
            hint="make room there, or name another folder with --to",
            where=f"{node.name}:{target}",
        )


def _stream(folder: Path, names: list[str], node: Node, target: str, transfer: _Transfer) -> None:
    command = ["rsync", "--times", "--partial", "--inplace", "--no-whole-file"]
    command += ["--files-from=-", "--from0", "--info=progress2", "--no-inc-recursive"]
    command += [f"--timeout={_SECONDS_WITHOUT_DATA}", "-e", shlex.join(node.shell)]
    # The remote path goes over rsync's own protocol, so that no shell reads it.
    command += ["--protect-args", "--", f"{folder}/", f"{node.name}:{target}/"]
    process = transfer.start(command)
    assert process.stdin and process.stdout and process.stderr
    # Of an rsync that has ended already, the exit status below tells.
    with suppress(BrokenPipeError), process.stdin as listed:
        listed.write(b"\0".join(name.encode() for name in names))
    done, line, said = 0, b"", []
    while piece := os.read(process.stdout.fileno(), 4096):
        *lines, line = re.split(rb"[\r\n]", line + piece)
        for text in lines:
            if found := _COUNT.match(text):
                count = int(found[1].replace(b",", b""))
                transfer.add(count - done)
                done = count
            elif text.strip():
                said.append(text.decode(errors="replace"))
    errors = said + process.stderr.read().decode(errors="replace").strip().splitlines()
    if process.wait():
        raise EnvironmentFault(
            f"the copy broke off ({errors[0] if errors else f'rsync exit {process.returncode}'})",
            hint="run it again to go on where it stopped",
            where=f"{node.name}:{target}",
        )


def _prove(folder: Path, node: Node, target: str, files: dict[str, FileHash]) -> None:
    """Take every hash on the node; sha256sum names the files that differ."""
    listed = "".join(f"{each.sha256}  {name}\n" for name, each in files.items())
    script = f"cd -- {shlex.quote(target)} && sha256sum --check --quiet --strict - 2>&1 || true"
    nbytes = sum(each.size_bytes for each in files.values())
    seconds = 60 + nbytes / _HASH_BYTES_S
    said = node.run("sh", "-c", script, send=listed.encode(), timeout_s=seconds)
    wrong = [line for line in said.splitlines() if line.strip()]
    for name, each in files.items():
        if f"{name}: FAILED" in wrong and hash_file(folder / name) != each:
            raise CheckFailed(
                "is not what its manifest says: it was changed after it was finished",
                hint="make it anew (hy3 quantize), then copy again; hy3 verify checks the folder",
                where=str(folder / name),
            )
    if wrong:
        raise CheckFailed(
            f"what arrived is not what was sent ({wrong[0]})",
            hint="run the copy again; if it persists, check the node's disk",
            where=f"{node.name}:{target}",
        )

"""How fast files can be read and written here; each probe takes about a second.

Reads come from the disk where the system lets go of cached pages (posix_fadvise); a rate measured
within a second says nothing of a disk that slows down later.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from hy3.hardware.rate import Rate, Stopwatch, rate_of

_BLOCK_BYTES = 4 * 2**20
_RUN_BYTES = 32 * 2**20  # read in one go, so that the system's read-ahead takes part
_FIRST_WRITE_BYTES = 8 * 2**20


def has_holes(path: Path) -> bool:
    """Whether much of the file takes no space: holes, or a file system that compresses."""
    status = path.stat()
    return status.st_blocks * 512 < 0.9 * status.st_size


def read_rate(paths: Sequence[Path], threads: int, seconds: float = 0.8) -> Rate:
    """Of reading from the disk at places spread over the files.

    Raises:
        OSError: a file cannot be read
    """
    descriptors = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
    try:
        return _read_rate(descriptors, threads, seconds)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def write_and_read_rate(
    folder: Path, most_bytes: int = 256 * 2**20, seconds: float = 1.0
) -> tuple[Rate, Rate]:
    """Of writing and syncing a file in ``folder``, and of reading it back; no name is left behind.

    Raises:
        OSError: the folder cannot be written to, or is full
    """
    # A file without a name, where there is such a thing, goes even when the process is killed.
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        descriptor = file.fileno()
        first = _write(descriptor, min(_FIRST_WRITE_BYTES, most_bytes))
        left = min(most_bytes - first.nbytes, int(first.bytes_per_s * (seconds - first.seconds)))
        rest = _write(descriptor, max(left, 0))
        return first + rest, _read_rate([descriptor], threads=1, seconds=seconds / 2)


def _write(descriptor: int, nbytes: int) -> Rate:
    """Append random bytes, which no file system can shrink, and sync them."""
    block = memoryview(random.Random(0).randbytes(_BLOCK_BYTES))
    watch, done = Stopwatch(), 0
    while done < nbytes:
        done += os.write(descriptor, block[: nbytes - done])
    os.fsync(descriptor)
    return watch.rate(done)


def _read_rate(descriptors: Sequence[int], threads: int, seconds: float) -> Rate:
    """Threads take runs in no order, as shards lie, and read each from its start to its end."""
    runs = [
        (descriptor, start)
        for descriptor in descriptors
        for start in range(0, os.fstat(descriptor).st_size, _RUN_BYTES)
    ]
    random.Random(0).shuffle(runs)
    lock = threading.Lock()

    def read() -> Iterator[int]:
        block = bytearray(_BLOCK_BYTES)
        while True:
            with lock:
                if not runs:
                    return
                descriptor, start = runs.pop()
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, start, _RUN_BYTES, os.POSIX_FADV_DONTNEED)
            for offset in range(start, start + _RUN_BYTES, _BLOCK_BYTES):
                yield os.preadv(descriptor, [block], offset)

    return rate_of(read, threads, seconds)

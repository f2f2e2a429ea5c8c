"""Holds a reader of files to its promises: it reads or refuses, in time, in bounds, and says why.

Python's own objects cost many times the JSON text that they are parsed from. So the bound is twice
the file, beside what the standard library's parser takes for that same text: a length, a shape or
an offset that a file only claims may move nothing. numpy's arrays are traced as well; what is
allocated past Python is caught by the limit on the address space.
"""

from __future__ import annotations

import json
import re
import resource
import shutil
import signal
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from hy3.errors import Hy3Error

SLACK_BYTES = 128 * 1024  # buffers of files, paths, errors and their tracebacks
ADDRESS_SPACE_BYTES = 512 * 2**20  # beyond what the process has already
LIMIT_S = 20.0
_MAX_SENTENCE = 1500


@dataclass(frozen=True)
class Reader:
    """What reads one file of a folder.

    Args:
        file: name of the file that is damaged
        valid: its bytes as they should be
        read: takes the folder; returns or raises a Hy3Error
        beside: the other files that it needs
        own_bytes: what its answer takes, whatever the files hold
        named: what errors call the file, where it is not by its path
    """

    file: str
    valid: bytes
    read: Callable[[Path], object]
    beside: dict[str, bytes] = field(default_factory=dict)
    own_bytes: int = 0
    named: str = ""


class BrokenPromiseError(AssertionError):
    """What a reader did wrong."""


def hold(reader: Reader, data: bytes) -> bool:
    """Let it read ``data`` in place of its file; whether it took them."""
    try:
        return _hold_in_folder(reader, lambda path: path.write_bytes(data), data)
    except BrokenPromiseError as error:
        error.add_note(f"{reader.file} held {data[:600]!r}")
        raise


def hold_place(reader: Reader, make: Callable[[Path], object]) -> bool:
    """Let it meet something else in place of its file; whether it took that."""
    return _hold_in_folder(reader, make, b"")


def _hold_in_folder(reader: Reader, make: Callable[[Path], object], data: bytes) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        for name, content in reader.beside.items():
            (folder / name).write_bytes(content)
        make(folder / reader.file)
        whole = len(data) + sum(map(len, reader.beside.values()))
        parse = sum(map(_parse_bytes, [data, *reader.beside.values()]))
        with _bounded(2 * whole + parse + reader.own_bytes + SLACK_BYTES):
            return _outcome(reader, folder)
    finally:
        shutil.rmtree(folder)


def _outcome(reader: Reader, folder: Path) -> bool:
    try:
        reader.read(folder)
    except Hy3Error as error:
        for word, text in (("hint", error.hint), ("where", error.where), ("text", error.message)):
            if not text.strip():
                raise BrokenPromiseError(f"an error without {word}: {error!r}") from error
            if len(text) > _MAX_SENTENCE or "\n" in text:
                raise BrokenPromiseError(f"{word} is no line: {text[:200]!r}") from error
        if str(folder) not in error.where and error.where != reader.named:
            raise BrokenPromiseError(f"where names no file: {error.where!r}") from error
        return False
    except BrokenPromiseError:
        raise
    except BaseException as error:
        raise BrokenPromiseError(f"{type(error).__name__}: {error}") from error
    return True


def _parse_bytes(data: bytes) -> int:
    """Peak of the standard library's parser for the JSON in ``data``, that of a shard included.

    Patterns cost their compilation on top.
    """
    tracemalloc.start()
    try:
        for text in (data, data[8 : 8 + int.from_bytes(data[:8], "little")]):
            with suppress(ValueError, RecursionError):
                json.loads(text, object_pairs_hook=list)
        for pattern in re.findall(rb'"re:([^"]*)"', data):
            with suppress(ValueError, re.error, OverflowError, RecursionError):
                re.compile(pattern.decode("utf-8", "replace"))
        re.purge()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@contextmanager
def _bounded(allowed_bytes: int) -> Iterator[None]:
    def out_of_time(*_: object) -> None:
        raise BrokenPromiseError(f"no answer within {LIMIT_S} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    earlier = signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + ADDRESS_SPACE_BYTES, hard))
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
    if peak > allowed_bytes:
        raise BrokenPromiseError(f"{peak} bytes allocated where {allowed_bytes} are allowed")


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()

"""The fuzz notices what it is there to notice: one planted reader for each promise, broken."""

from __future__ import annotations

import json
import mmap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import support.fuzzing as fuzzing
from hy3.checkpoint.json_file import read_json_object
from hy3.errors import EnvironmentFault, InputError
from support.fuzzing import BrokenPromiseError, Reader, hold, hold_place
from support.hostile import PLACES

SMALL = b'{"count": 5}'
HUGE = b'{"count": 50000000}'


def count_of(folder: Path) -> int:
    return int(read_json_object(folder / "a.json")["count"])


def whole(folder: Path) -> bytes:
    return (folder / "a.json").read_bytes()


def never(folder: Path) -> None:
    while True:
        time.sleep(0.01)


def refuse(
    hint: str = "mend it", where: str = "", text: str = "is wrong"
) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        raise InputError(text, hint=hint, where=where.format(folder))

    return read


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "a crash": (lambda folder: {}["no such key"], "KeyError"),
    "a system error": (lambda folder: (folder / "none").read_bytes(), "FileNotFoundError"),
    "an exit": (lambda folder: exit(3), "SystemExit"),
    "endless recursion": (lambda folder: (f := lambda: f())(), "RecursionError"),
    "a hang": (never, "no answer within"),
    "no hint": (refuse(hint=" ", where="{}/a.json"), "without hint"),
    "no place": (refuse(), "without where"),
    "another place": (refuse(where="here"), "names no file"),
    "two lines": (refuse(text="a\nb", where="{}"), "text is no line"),
    "a flood": (refuse(text="a" * 10_000, where="{}"), "text is no line"),
    "an array of a claimed size": (lambda folder: np.empty(count_of(folder)), "bytes allocated"),
    "a buffer of a claimed size": (lambda folder: bytes(count_of(folder)), "bytes allocated"),
    "a mapping past Python": (lambda folder: mmap.mmap(-1, 20 * count_of(folder)), "OSError"),
    "many copies": (lambda folder: [whole(folder) + b"0" for _ in range(8)], "bytes allocated"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_promise_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, message = BROKEN[fault]
    monkeypatch.setattr(fuzzing, "LIMIT_S", 1.0)
    data = b'"' + b"a" * 10**6 + b'"' if fault == "many copies" else HUGE
    with pytest.raises(BrokenPromiseError, match=message):
        hold(Reader("a.json", SMALL, read), data)


@pytest.mark.parametrize("fault", ["an array of a claimed size", "a mapping past Python"])
def test_the_same_reader_holds_on_a_sound_file(fault: str) -> None:
    """It is the claim in the file that breaks it, nothing of the harness."""
    assert hold(Reader("a.json", SMALL, BROKEN[fault][0]), SMALL)


def test_a_wait_on_a_pipe_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "LIMIT_S", 1.0)
    with pytest.raises(BrokenPromiseError, match="no answer within"):
        hold_place(Reader("a.json", SMALL, whole), PLACES["fifo"])


def test_promises_that_are_kept() -> None:
    reader = Reader("a.json", SMALL, count_of)
    assert hold(reader, SMALL)
    assert not hold(reader, b"[")
    dense = b'{"count": 1, "more": [' + b"[]," * 200_000 + b"[]]}"
    assert hold(reader, dense), "what the standard library's parser takes is allowed"
    for error in (InputError, EnvironmentFault):

        def read(folder: Path, error: type[InputError] = error) -> None:
            raise error("is wrong", hint="mend it", where=f"{folder}/a.json: byte 3")

        assert not hold(Reader("a.json", SMALL, read), json.dumps({}).encode())

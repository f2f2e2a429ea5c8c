"""Standard output that may be full, closed, or a pipe whose reader has left."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from hy3.errors import EnvironmentFault

# What a shell reports of a tool that SIGPIPE ended. The signal itself stays ignored: it would end a
# server whose client leaves.
_READER_LEFT = 128 + 13


class StdoutLostError(Exception):
    """Standard output takes no more; no verb can mend that, so it is no Hy3Error for one to catch.

    ``fault`` is what to say of it: nothing when the reader has left, as behind ``| head``.
    """

    def __init__(self, fault: EnvironmentFault | None) -> None:
        super().__init__(fault)
        self.fault = fault
        self.exit_code = fault.exit_code if fault else _READER_LEFT


@contextmanager
def guarded_stdout() -> Iterator[None]:
    """Inside, what goes wrong on standard output is a StdoutLostError."""
    if sys.stderr is None:  # print() would take standard output instead
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open until the process ends
    if sys.stdout is None:
        raise StdoutLostError(_unwritable("it is closed"))
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        # Names of files may be bytes that are no text; a result must not fail over showing one.
        stream.reconfigure(errors="backslashreplace")
    sys.stdout = cast(TextIO, _Guarded(stream))
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout = stream


def settle_stderr() -> None:
    """Drop what standard error cannot take: some Pythons end with 120 instead of our code."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, 2)
        os.close(null)


class _Guarded:
    """A stream whose writing fails in our terms; all else is the stream's own.

    What went wrong once is raised at every later attempt: libraries probe a stream and swallow it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost: StdoutLostError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write as the stream does."""
        with self._faults():
            return self._stream.write(text)

    def flush(self) -> None:
        """Flush as the stream does."""
        with self._faults():
            self._stream.flush()

    @contextmanager
    def _faults(self) -> Iterator[None]:
        if self._lost is not None:
            raise self._lost
        try:
            yield
        except OSError as error:
            self._abandon()
            left = isinstance(error, BrokenPipeError)
            self._lost = StdoutLostError(None if left else _unwritable(error.strerror))
            raise self._lost from error

    def _abandon(self) -> None:
        """The stream keeps what it could not write; the interpreter would try again at its end."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


def _unwritable(reason: str | None) -> EnvironmentFault:
    return EnvironmentFault(
        f"cannot be written ({reason})",
        hint="free some space, or send the output elsewhere",
        where="standard output",
    )

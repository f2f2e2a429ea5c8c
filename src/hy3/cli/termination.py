"""SIGTERM ends long work as Ctrl-C does: threads stop, one line says so, the exit code is 143."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from hy3.errors import Terminated

RESUMES = "what is finished is kept: run the same command again"


@contextmanager
def terminable(hint: str) -> Generator[None, None, None]:
    """While the context lasts, SIGTERM raises Terminated in the main thread."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated("stopped by SIGTERM", hint=hint)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

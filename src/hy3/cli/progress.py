"""A progress display for work that is measured in bytes: a bar, or plain lines off a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hy3.units import format_bytes, format_seconds

_SECONDS_BETWEEN_LINES = 10.0

Advance = Callable[[int], None]


@contextmanager
def byte_progress(label: str, total_bytes: int, quiet: bool) -> Iterator[Advance]:
    """Yields a function that any thread may call with the bytes done since its last call."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with _bar(label, total_bytes) as advance:
            yield advance
    else:
        yield _Lines(label, total_bytes).advance


@contextmanager
def _bar(label: str, total_bytes: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total_bytes or None)
        yield lambda count: progress.advance(task, count)


class _Lines:
    """One line now and then; short work prints none."""

    def __init__(self, label: str, total_bytes: int) -> None:
        self.label, self.total_bytes = label, total_bytes
        self._lock = threading.Lock()
        self._done_bytes = 0
        self._start = self._last = time.monotonic()

    def advance(self, count: int) -> None:
        with self._lock:
            self._done_bytes += count
            now = time.monotonic()
            if now - self._last < _SECONDS_BETWEEN_LINES:
                return
            self._last = now
            print(self._line(now - self._start), file=sys.stderr, flush=True)

    def _line(self, elapsed: float) -> str:
        done, total = self._done_bytes, self.total_bytes
        line = f"{self.label}: {format_bytes(done)}"
        if total:
            left = elapsed * max(total - done, 0) / max(done, 1)
            line += f" of {format_bytes(total)}, {format_seconds(left)} left"
        return line

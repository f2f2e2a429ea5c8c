"""A progress display for work that is measured in bytes: a bar, or plain lines off a terminal.

Work that encodes weights shows their error so far beside that of the plain rule.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hy3.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from hy3.quantize.progress import Meter
    from hy3.quantize.stats import WeightStats

_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def byte_progress(label: str, total_bytes: int, quiet: bool) -> Iterator[Meter]:
    """Yields a function that any thread may tell of its progress."""
    if quiet:
        yield _ignore
    elif sys.stderr.isatty():
        with _bar(label, total_bytes) as advance:
            yield advance
    else:
        yield _Lines(label, total_bytes).advance


def _ignore(count: int, stats: WeightStats | None = None, /) -> None:
    pass


class _ErrorSoFar:
    """Adds statistics up; its text is empty before the first."""

    def __init__(self) -> None:
        self._sum: WeightStats | None = None

    def add(self, stats: WeightStats | None) -> None:
        if stats is not None:
            self._sum = stats if self._sum is None else self._sum + stats

    @property
    def text(self) -> str:
        if self._sum is None:
            return ""
        return f"error {self._sum.relative_error:.5f}, max {self._sum.relative_max_error:.5f}"


@contextmanager
def _bar(label: str, total_bytes: int) -> Iterator[Meter]:
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
        BarColumn(bar_width=16),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[error]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total_bytes or None, error="")
        yield _Bar(progress, task).advance


class _Bar:
    """One task of rich's display."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task
        self._lock = threading.Lock()
        self._error = _ErrorSoFar()

    def advance(self, count: int, stats: WeightStats | None = None, /) -> None:
        with self._lock:
            self._error.add(stats)
            self._progress.update(self._task, advance=count, error=self._error.text)


class _Lines:
    """One line now and then; short work prints none."""

    def __init__(self, label: str, total_bytes: int) -> None:
        self.label, self.total_bytes = label, total_bytes
        self._lock = threading.Lock()
        self._done_bytes = 0
        self._error = _ErrorSoFar()
        self._start = self._last = time.monotonic()

    def advance(self, count: int, stats: WeightStats | None = None, /) -> None:
        with self._lock:
            self._done_bytes += count
            self._error.add(stats)
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
        return ", ".join(part for part in (line, self._error.text) if part)

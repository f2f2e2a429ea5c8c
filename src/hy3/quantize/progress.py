"""How long work reports what it has done; who shows it is its caller's business."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from hy3.quantize.stats import WeightStats

# Takes the bytes done since its last call, from any thread.
Advance = Callable[[int], None]


class Meter(Protocol):
    """An Advance that also takes what encoding did to those bytes, where they were encoded."""

    def __call__(self, count: int, stats: WeightStats | None = None, /) -> None: ...


# progress(label, total bytes) gives a context whose value is to be told.
Progress = Callable[[str, int], AbstractContextManager[Meter]]

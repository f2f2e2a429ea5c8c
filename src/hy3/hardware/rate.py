"""``Rate``: bytes a second, measured by threads that work until a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    """What was done in which time."""

    nbytes: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        """Zero when nothing was done."""
        return self.nbytes / self.seconds if self.nbytes else 0.0


def rate_of(work: Callable[[], Iterator[int]], threads: int, seconds: float) -> Rate:
    """The joint rate of some threads; each iterates over a ``work()`` of its own until time is up.

    ``work()`` yields the bytes it has done since its last yield.
    """
    start = time.monotonic()

    def run() -> int:
        done = 0
        for count in work():
            done += count
            if time.monotonic() - start >= seconds:
                break
        return done

    with ThreadPoolExecutor(threads) as pool:
        nbytes = sum(future.result() for future in [pool.submit(run) for _ in range(threads)])
    return Rate(nbytes, time.monotonic() - start)

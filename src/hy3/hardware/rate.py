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
    cpu_seconds: float  # of all threads, the system's part included

    @property
    def bytes_per_s(self) -> float:
        """Zero when nothing was done."""
        return self.nbytes / self.seconds if self.nbytes else 0.0

    def __add__(self, other: Rate) -> Rate:
        """One after the other."""
        return Rate(
            self.nbytes + other.nbytes,
            self.seconds + other.seconds,
            self.cpu_seconds + other.cpu_seconds,
        )


class Stopwatch:
    """Started when it is made."""

    def __init__(self) -> None:
        self._start, self._cpu_start = time.monotonic(), time.process_time()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start

    def rate(self, nbytes: int) -> Rate:
        """Of that many bytes since the start."""
        return Rate(nbytes, self.seconds, time.process_time() - self._cpu_start)


def rate_of(work: Callable[[], Iterator[int]], threads: int, seconds: float) -> Rate:
    """The joint rate of some threads; each iterates over a ``work()`` of its own until time is up.

    ``work()`` yields the bytes it has done since its last yield.
    """
    watch = Stopwatch()

    def run() -> int:
        done = 0
        for count in work():
            done += count
            if watch.seconds >= seconds:
                break
        return done

    with ThreadPoolExecutor(threads) as pool:
        nbytes = sum(future.result() for future in [pool.submit(run) for _ in range(threads)])
    return watch.rate(nbytes)

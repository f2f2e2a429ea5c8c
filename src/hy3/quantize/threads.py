"""Shards on threads: results as they finish, and a stop for all when one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """Another shard has failed or the user has interrupted; not an error of this one."""


def finished_shards(
    work: Callable[[str], T], shards: Iterable[str], workers: int, stop: threading.Event
) -> Generator[tuple[str, T], None, None]:
    """Yields (shard, result) in the order of finishing.

    On the first failure, an interrupt, or when the generator is closed, ``stop`` is set; ``work``
    looks at it and raises Stopped, so that no thread is left when this returns.
    """
    with ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(work, shard): shard for shard in shards}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise

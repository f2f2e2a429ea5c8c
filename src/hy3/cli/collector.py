"""Python's cyclic garbage collector, put to rest while a command reads what holds no cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """No collection within.

    The headers of a large checkpoint become millions of small objects, none of them in a cycle;
    the collector goes through all of them again and again as they grow, which takes longer than
    reading them. What reference counts free is freed all the same.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

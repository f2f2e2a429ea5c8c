"""A failing or abandoned crew leaves no thread at work."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from hy3.quantize.threads import Stopped, finished_shards


def until_stopped(stop: threading.Event) -> None:
    if not stop.wait(timeout=10):
        raise AssertionError("never stopped")
    raise Stopped


def test_all_results_come() -> None:
    names = [str(number) for number in range(20)]
    stop = threading.Event()
    assert dict(finished_shards(len, names, 3, stop)) == {name: len(name) for name in names}
    assert not stop.is_set()


def test_the_first_failure_is_raised_and_stops_the_others() -> None:
    stop = threading.Event()

    def work(shard: str) -> None:
        if shard == "bad":
            raise ValueError("bad")
        until_stopped(stop)

    before = threading.active_count()
    with pytest.raises(ValueError, match="bad"):
        list(finished_shards(work, ["slow", "bad", "never"], 2, stop))
    assert threading.active_count() == before


def test_a_consumer_that_leaves_stops_the_work() -> None:
    stop = threading.Event()

    def work(shard: str) -> str:
        return shard if shard == "quick" else until_stopped(stop)

    with closing(finished_shards(work, ["quick", "slow"], 2, stop)) as results:
        assert next(results) == ("quick", "quick")
    assert stop.is_set()

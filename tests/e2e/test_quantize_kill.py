"""Killed with SIGKILL at any point, a rerun ends with the bytes of a run that was left alone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from support.quantizing import kill_after, kill_at_event, run, run_in_child, tree
from support.scripted import make_random


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random(tmp_path_factory.mktemp("source") / "model", seed=5, shards=4)


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("reference") / "out"
    run(source, out)
    return tree(out)


def kill_until_done(source: Path, out: Path, first: int, step: int) -> int:
    """Kill one run at every ``step``-th event, each on top of what the last one left."""
    kills, number = 0, first
    while True:
        status = run_in_child(source, out, kill_at_event(out, number))
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return kills
        assert os.WTERMSIG(status) == signal.SIGKILL
        kills += 1
        number += step


def check_kill_at(source: Path, out: Path, number: int, expected: dict[str, str]) -> bool:
    """Kill a fresh run at an event, rerun, compare; False when the run ended before the event."""
    shutil.rmtree(out, ignore_errors=True)
    status = run_in_child(source, out, kill_at_event(out, number))
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        assert tree(out) == expected
        return False
    run(source, out)
    assert tree(out) == expected, f"killed at event {number}"
    return True


def test_kill_at_events_of_a_fresh_run(
    source: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    kills = 0
    while check_kill_at(source, tmp_path / "out", 1 + 3 * kills, expected):
        kills += 1
    assert kills >= 12  # every third of the times that a run touches a file


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_kill_at_every_event_of_a_fresh_run(
    source: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    kills = 0
    while check_kill_at(source, tmp_path / "out", 1 + kills, expected):
        kills += 1
    assert kills >= 36


def test_kill_again_and_again(source: Path, expected: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert kill_until_done(source, out, first=4, step=4) >= 5
    assert tree(out) == expected


def test_kill_at_random_times(source: Path, expected: dict[str, str], tmp_path: Path) -> None:
    check_random_kills(source, expected, tmp_path / "out", kills=6, seed=1)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_kill_at_many_random_times(source: Path, expected: dict[str, str], tmp_path: Path) -> None:
    check_random_kills(source, expected, tmp_path / "out", kills=200, seed=2)


def check_random_kills(
    source: Path, expected: dict[str, str], out: Path, kills: int, seed: int
) -> None:
    start = time.monotonic()
    run(source, out)
    whole = time.monotonic() - start
    chance = random.Random(seed)
    for _ in range(kills):
        shutil.rmtree(out)
        run_in_child(source, out, kill_after(whole * chance.uniform(0.02, 1)), workers=3)
        run(source, out)
        assert tree(out) == expected


def test_a_torn_shard_would_be_seen(source: Path, expected: dict[str, str], tmp_path: Path) -> None:
    """The comparison itself: one byte in one shard makes the trees differ."""
    out = tmp_path / "out"
    run(source, out)
    shard = next(out.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert tree(out) != expected

"""Killed with SIGKILL at any point, a rerun ends with the bytes of a run that was left alone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from support.killing import (
    Place,
    calls_of_a_run,
    choose,
    kill_and_rerun,
    kill_at,
    places_of,
    weights_of,
)
from support.os_calls import PHASES
from support.quantizing import kill_after, run, run_in_child, tree
from support.scripted import make_random

pytestmark = pytest.mark.usefixtures("pictures_once")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "model"
    return make_random(folder, seed=5, shards=4, num_experts=2)


@pytest.fixture(scope="module")
def places(source: Path, expected: dict[str, str], tmp_path_factory) -> list[Place]:
    out = tmp_path_factory.mktemp("recorded") / "out"
    calls = calls_of_a_run(source, out)
    assert tree(out) == expected
    return places_of(calls, source_files=6)


def check_kills(
    source: Path, expected: dict[str, str], places: list[Place], out: Path, count: int
) -> Counter[str]:
    """Kill, rerun and compare, at most one weight for each worker redone; kills by phase."""
    weights = weights_of(source)
    phases: Counter[str] = Counter()
    for number, place in enumerate(choose(places, count, seed=1)):
        kill_and_rerun(source, out, place, 1 + number % 2, expected, weights)
        phases[place.phase] += 1
    return phases


def test_kills_in_every_phase(
    source: Path, expected: dict[str, str], places: list[Place], tmp_path: Path
) -> None:
    phases = check_kills(source, expected, places, tmp_path / "out", count=3 * len(PHASES))
    assert phases == dict.fromkeys(PHASES, 3)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_hundred_kills_in_every_phase(
    source: Path, expected: dict[str, str], places: list[Place], tmp_path: Path
) -> None:
    phases = check_kills(source, expected, places, tmp_path / "out", count=207)
    assert set(phases) == set(PHASES) and min(phases.values()) >= 10


def test_kill_again_and_again(source: Path, expected: dict[str, str], tmp_path: Path) -> None:
    """Each run dies on top of what the last one left, a little later in the writing of tensors."""
    out = tmp_path / "out"
    statuses = [
        run_in_child(source, out, kill_at(out, Place("tensor", 25, "half")), workers=1)
        for _ in range(12)
    ]
    kills = [status for status in statuses if status]
    assert 5 < len(kills) < 12 and set(map(os.WTERMSIG, kills)) == {signal.SIGKILL}
    assert statuses[len(kills) :] == [0] * (12 - len(kills))
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

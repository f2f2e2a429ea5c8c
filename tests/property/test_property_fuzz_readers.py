"""Fuzz of every reader of foreign files: a few hundred examples here, ten minutes in the long run.

What a reader promises is in ``support.fuzzing``; that each broken promise is noticed is tested in
``tests/unit/support``.
"""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from support.foreign_readers import DATA, HEADER, READERS
from support.fuzzing import Reader, hold, hold_place
from support.hostile import PLACES, damaged, damaged_shard

BUDGET_S = 600.0
BATCH = 100
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(QUICK, max_examples=BATCH, database=None, phases=[Phase.generate, Phase.shrink])


def contents(reader: Reader) -> st.SearchStrategy[bytes]:
    if reader.file.endswith(".safetensors"):
        return damaged_shard(HEADER, DATA)
    return damaged(reader.valid)


@pytest.mark.parametrize("name", READERS)
def test_sound_files_are_taken(name: str) -> None:
    assert hold(READERS[name], READERS[name].valid)


@pytest.mark.parametrize("name", READERS)
def test_some_damage(name: str) -> None:
    @QUICK
    @given(data=contents(READERS[name]))
    def run(data: bytes) -> None:
        hold(READERS[name], data)

    run()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", READERS)
def test_what_stands_in_place_of_a_file(name: str, place: str) -> None:
    hold_place(READERS[name], PLACES[place])


def run_batch(reader: Reader, number: int) -> None:
    @seed(number)
    @LONG
    @given(data=contents(reader))
    def run(data: bytes) -> None:
        hold(reader, data)

    run()


@pytest.mark.long
@pytest.mark.timeout(2 * BUDGET_S)
def test_ten_minutes_of_damage(request: pytest.FixtureRequest) -> None:
    """Every batch has a seed of its own; the first follows from the run's seed."""
    given_seed = request.config.getoption("hypothesisseed", default=None)
    first = int(given_seed) if str(given_seed).isdecimal() else 0
    end = time.monotonic() + BUDGET_S
    examples = 0
    for number, name in zip(itertools.count(first), itertools.cycle(READERS), strict=False):
        if time.monotonic() > end:
            break

        run_batch(READERS[name], number)
        examples += BATCH
    assert examples >= BATCH * len(READERS), "the budget is over before each reader had a batch"

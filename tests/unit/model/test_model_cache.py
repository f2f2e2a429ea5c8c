"""The paged cache changes nothing: chunks, scattered blocks and several sequences in one batch."""

from __future__ import annotations

import pytest
import torch

from hy3.model.decoder import load_model
from support.batches import make_batch, run_chunks
from support.scripted import make_random

BLOCK = 4
FIRST = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
SECOND = [2, 7, 1, 8, 2, 8, 1, 8, 2]
FIRST_TABLE, SECOND_TABLE = [5, 0, 7, 2], [1, 6, 3]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = make_random(tmp_path_factory.mktemp("cache"), seed=3)
    return load_model(folder, dtype=torch.float32)


def whole(model, tokens):
    return model.forward_full(torch.tensor(tokens))


def test_paged_equals_unpaged(model):
    pool = model.new_pool(8, BLOCK)
    states = run_chunks(model, pool, FIRST, [], FIRST_TABLE)
    torch.testing.assert_close(states, whole(model, FIRST), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cuts", [[1], [4, 8], [5, 6, 7], list(range(1, len(FIRST)))])
def test_chunked_equals_whole(model, cuts):
    pool = model.new_pool(8, BLOCK)
    states = run_chunks(model, pool, FIRST, cuts, FIRST_TABLE)
    torch.testing.assert_close(states, whole(model, FIRST), rtol=1e-5, atol=1e-5)


def test_sequences_of_one_batch_do_not_mix(model):
    pool = model.new_pool(8, BLOCK)
    run_chunks(model, pool, FIRST[:6], [], FIRST_TABLE)
    batch = make_batch([(6, FIRST[6:]), (0, SECOND)], [FIRST_TABLE, SECOND_TABLE], BLOCK)
    states = model.forward(batch, pool)
    first, second = states.split([len(FIRST) - 6, len(SECOND)])
    torch.testing.assert_close(first, whole(model, FIRST)[6:], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(second, whole(model, SECOND), rtol=1e-5, atol=1e-5)


def test_rows_without_slot_are_not_written(model):
    pool = model.new_pool(8, BLOCK)
    run_chunks(model, pool, FIRST, [], FIRST_TABLE)
    before = pool.keys[0].clone()
    batch = make_batch([(len(FIRST), [1, 2])], [FIRST_TABLE], BLOCK)
    batch.slots[:] = -1
    model.forward(batch, pool)
    assert torch.equal(pool.keys[0], before)


def test_stale_blocks_are_not_read(model):
    """A longer sequence leaves its keys behind; a shorter one in the same blocks ignores them."""
    pool = model.new_pool(8, BLOCK)
    run_chunks(model, pool, FIRST, [], FIRST_TABLE)
    states = run_chunks(model, pool, SECOND, [2], FIRST_TABLE)
    torch.testing.assert_close(states, whole(model, SECOND), rtol=1e-5, atol=1e-5)

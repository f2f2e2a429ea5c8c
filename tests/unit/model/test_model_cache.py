"""The paged cache changes nothing: chunks, scattered blocks and several sequences in one batch."""

from __future__ import annotations

import pytest
import torch

from hy3.kernels import dispatch
from hy3.kernels.attention_input import attention_input
from hy3.kernels.rms_norm import rms_norm
from hy3.model.decoder import KvPool, load_model
from hy3.model.kv_pool import block_bytes
from hy3.model.moe import feed_forward_block
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


WIDE_BLOCK = 16
LONG = [(7 * i * i + 3 * i) % 311 for i in range(45)]


@pytest.fixture(scope="module")
def bf16_model(tmp_path_factory):
    folder = make_random(tmp_path_factory.mktemp("bf16"), seed=3)
    return load_model(folder)


def decode_all(model, pool, sequences, tables, rows):
    """Feed several sequences together, ``rows`` tokens of each per step; states per sequence."""
    states = [[] for _ in sequences]
    for past in range(0, len(sequences[0]), rows):
        parts = [(past, tokens[past : past + rows]) for tokens in sequences]
        found = model.forward(make_batch(parts, tables, pool.block_size), pool)
        for mine, piece in zip(states, found.split([len(new) for _, new in parts]), strict=True):
            mine.append(piece)
    return [torch.cat(mine) for mine in states]


def test_bf16_rows_do_not_depend_on_the_batch(bf16_model):
    """Alone or with others, one row a step or several: the kernels give the same bits."""
    others = [[(5 * token + shift) % 311 for token in LONG] for shift in (1, 2)]
    tables = [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    alone = decode_all(bf16_model, bf16_model.new_pool(9, WIDE_BLOCK), [LONG], tables[:1], 1)[0]
    for rows in (1, 2, 5):
        pool = bf16_model.new_pool(9, WIDE_BLOCK)
        together = decode_all(bf16_model, pool, [LONG, *others], tables, rows)[0]
        assert torch.equal(together, alone)


def test_bf16_kernels_follow_the_oracles(bf16_model, monkeypatch):
    table = [2, 0, 1]
    fast = run_chunks(bf16_model, bf16_model.new_pool(3, WIDE_BLOCK), LONG, [20, 21, 30], table)
    monkeypatch.setattr(dispatch, "TWINS_ALLOWED", False)
    slow = run_chunks(bf16_model, bf16_model.new_pool(3, WIDE_BLOCK), LONG, [20, 21, 30], table)
    gap = (bf16_model.logits(fast) - bf16_model.logits(slow)).abs().amax(-1)
    # A router near-tie may pick another expert; it must stay an exception among rows.
    close = gap <= 4 * 2**-8 * bf16_model.logits(slow).abs().max()
    assert close.float().mean() >= 0.9


class ScaledCache:
    """Attention over keys and values that passed through E4M3, from the definition."""

    def __init__(self, model, scales):
        self.model, self.scales = model, scales

    def squeeze(self, x, scale):
        return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale

    def states(self, tokens):
        config, weights = self.model.config, self.model.weights
        hidden = weights.embedding[torch.tensor(tokens)]
        rope = self.model._rope(torch.arange(len(tokens)))
        for layer, (k_scale, v_scale) in zip(weights.layers, self.scales, strict=False):
            block = layer.attention
            norms = (block.norm, block.qkv, block.q_norm, block.k_norm)
            q, k, v = attention_input.oracle(
                hidden, *norms, *rope, config.num_heads, config.rms_norm_eps
            )
            k, v = self.squeeze(k, k_scale), self.squeeze(v, v_scale)
            group = config.num_heads // config.num_kv_heads
            k, v = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in (k, v))
            scores = q.transpose(0, 1) @ k.transpose(1, 2) / config.head_dim**0.5
            future = torch.ones(len(tokens), len(tokens)).triu(1).bool()
            mixed = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
            hidden = hidden + mixed.transpose(0, 1).flatten(1) @ block.out.T
            hidden = feed_forward_block(hidden, layer.feed_forward, config)
        return rms_norm(hidden, weights.norm, config.rms_norm_eps)


def test_fp8_cache_equals_the_definition(model):
    scales = [(0.05, 0.02), (1.0, 1.0), (0.3, 0.01), (1.0, 1.0)]
    pool = KvPool(model.config, 3, WIDE_BLOCK, torch.float8_e4m3fn, scales=scales)
    found = run_chunks(model, pool, LONG, [16, 17, 40], [1, 2, 0])
    expected = ScaledCache(model, scales).states(LONG)
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    plain = whole(model, LONG)
    assert (found - plain).abs().max() > 1e-3 * plain.abs().max()
    unscaled = KvPool(model.config, 3, WIDE_BLOCK, torch.float8_e4m3fn)
    assert not torch.equal(run_chunks(model, unscaled, LONG, [16, 17, 40], [1, 2, 0]), found)


def test_fp8_cache_under_kernels(bf16_model):
    """BF16 activations over an E4M3 cache: close to the whole sequence without a cache."""
    pool = bf16_model.new_pool(3, WIDE_BLOCK, torch.float8_e4m3fn)
    found = run_chunks(bf16_model, pool, LONG, list(range(1, 45)), [1, 2, 0]).float()
    expected = whole(bf16_model, LONG).float()
    similarity = torch.cosine_similarity(found, expected, dim=-1)
    assert similarity.median() > 0.99


def test_block_bytes_counts_the_pool(model):
    pool = model.new_pool(3, WIDE_BLOCK)
    held = sum(t.numel() * t.element_size() for t in (*pool.keys, *pool.values))
    assert 3 * block_bytes(model.config, WIDE_BLOCK, torch.float32) == held

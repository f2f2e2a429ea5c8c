"""Each numba twin against its torch oracle, at the values and shapes where they could part."""

from __future__ import annotations

import pytest
import torch

from hy3.kernels.attention_input import attention_input
from hy3.kernels.head import head_logits
from hy3.kernels.kv_store import store_kv
from hy3.kernels.linear import linear
from hy3.kernels.mlp import mlp_block
from hy3.kernels.moe import moe_block
from hy3.kernels.paged_attention import paged_attention
from hy3.kernels.rms_norm import rms_norm

ROWS = [1, 2, 3, 8]
SIZE, WIDTH, EXPERTS, TOP_K, HEADS, KV_HEADS, DIM = 64, 32, 8, 3, 4, 2, 32
EPS = 1e-5


class Random:
    """Seeded BF16 tensors."""

    def __init__(self, seed=0):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape, gain=1.0):
        return (torch.randn(shape, generator=self.generator) * gain).bfloat16()

    def matrix(self, *shape):
        return self(*shape, gain=shape[-1] ** -0.5)

    def norm(self, size):
        return 1 + self(size, gain=0.2)


def assert_twin(operation, *args, steps=1.0):
    """Equal to the oracle within ``steps`` BF16 steps of the largest value."""
    expected, found = operation.oracle(*args), operation.named("numba")(*args)
    if isinstance(expected, torch.Tensor):
        expected, found = (expected,), (found,)
    for one, other in zip(expected, found, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        largest = one.float().abs().max()
        assert (one.float() - other.float()).abs().max() <= steps * 2**-8 * largest


def hidden_rows(random, rows):
    """Ordinary rows, then one of zeros and one of very unequal values."""
    hidden = random(rows, SIZE)
    if rows > 1:
        hidden[-1] = 0
    if rows > 2:
        hidden[-2, 0], hidden[-2, 1] = 30000.0, -1e-30
    return hidden


@pytest.mark.parametrize("rows", ROWS)
def test_rms_norm(rows):
    random = Random(rows)
    hidden, weight = hidden_rows(random, rows), random.norm(SIZE)
    assert torch.equal(
        rms_norm.oracle(hidden, weight, EPS), rms_norm.named("numba")(hidden, weight, EPS)
    )


@pytest.mark.parametrize("rows", ROWS)
def test_linear(rows):
    random = Random(rows)
    x, weight, residual = random(rows, SIZE), random.matrix(24, SIZE), random(rows, 24)
    assert_twin(linear, x, weight)
    assert_twin(linear, x, weight, residual)
    assert_twin(linear, random(SIZE, rows).T, weight, random(24, rows).T)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("wide", [True, False])
def test_head(rows, wide):
    random = Random(rows)
    hidden, weight = random(rows, SIZE), random.matrix(40, SIZE)
    assert_twin(head_logits, hidden, weight, wide, steps=1e-3 if wide else 1.0)


@pytest.mark.parametrize("rows", ROWS)
def test_mlp(rows):
    random = Random(rows)
    gate_up, down = random.matrix(2 * WIDTH, SIZE), random.matrix(SIZE, WIDTH)
    gate_up[0] *= 100  # a saturated gate, open or shut
    assert_twin(mlp_block, hidden_rows(random, rows), random.norm(SIZE), gate_up, down, EPS)


def moe_weights(random):
    return {
        "norm": random.norm(SIZE),
        "router": random.matrix(EXPERTS, SIZE),
        "bias": random(EXPERTS, gain=0.1).float(),
        "gate_up": random.matrix(EXPERTS, 2 * WIDTH, SIZE),
        "down": random.matrix(EXPERTS, SIZE, WIDTH),
        "shared_gate_up": random.matrix(2 * WIDTH, SIZE),
        "shared_down": random.matrix(SIZE, WIDTH),
    }


@pytest.mark.parametrize("rows", ROWS)
def test_moe(rows):
    random = Random(rows)
    weights = moe_weights(random)
    assert_twin(moe_block, hidden_rows(random, rows), *weights.values(), TOP_K, 2.5, EPS)


def test_moe_bias_selects_but_does_not_weigh():
    """A bias that decides every choice: the twin's experts and weights follow the oracle's."""
    random = Random(9)
    weights = moe_weights(random)
    weights["bias"] = torch.tensor([0.0, 5.0, 0.0, 0.0, 7.0, 0.0, 6.0, 0.0])
    hidden = random(4, SIZE)
    assert_twin(moe_block, hidden, *weights.values(), TOP_K, 2.5, EPS)
    chosen = [1, 4, 6]
    weights["gate_up"][[e for e in range(EXPERTS) if e not in chosen]] = float("nan")
    assert moe_block.named("numba")(hidden, *weights.values(), TOP_K, 2.5, EPS).isfinite().all()


def test_moe_with_saturated_router():
    """Sigmoids of 0 and 1: weights are renormalised without dividing by zero."""
    random = Random(10)
    weights = moe_weights(random)
    for sign in (1, -1):
        weights["router"] = (sign * 1000 * torch.ones(EXPERTS, SIZE)).bfloat16()
        weights["norm"] = torch.ones(SIZE).bfloat16()
        weights["bias"] = torch.arange(EXPERTS) * 1e-3
        hidden = torch.ones(2, SIZE).bfloat16()
        assert_twin(moe_block, hidden, *weights.values(), TOP_K, 2.5, EPS)


@pytest.mark.parametrize("rows", ROWS)
def test_attention_input(rows):
    random = Random(rows)
    angles = torch.arange(rows)[:, None] * torch.logspace(0, -3, DIM // 2)
    qkv = random.matrix((HEADS + 2 * KV_HEADS) * DIM, SIZE)
    norms = (random.norm(DIM), random.norm(DIM))
    rope = (angles.cos().bfloat16(), angles.sin().bfloat16())
    hidden = hidden_rows(random, rows)
    assert_twin(attention_input, hidden, random.norm(SIZE), qkv, *norms, *rope, HEADS, EPS)


CACHES = [torch.bfloat16, torch.float8_e4m3fn]


def caches(random, blocks, block_size, dtype):
    return [random(blocks, block_size, KV_HEADS, DIM).to(dtype) for _ in range(2)]


@pytest.mark.parametrize("dtype", CACHES)
@pytest.mark.parametrize(
    ("new", "contexts"),
    [([1], [1]), ([1, 1], [16, 17]), ([2, 1, 4], [2, 33, 15]), ([5], [40])],
)
def test_paged_attention(dtype, new, contexts):
    random, block_size = Random(len(new)), 8
    width = -(-max(contexts) // block_size)
    tables = torch.randperm(len(new) * width, generator=random.generator).view(len(new), width)
    k_cache, v_cache = caches(random, len(new) * width, block_size, dtype)
    starts = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32)
    args = (
        random(sum(new), HEADS, DIM),
        k_cache,
        v_cache,
        starts,
        torch.tensor(contexts, dtype=torch.int32),
        tables.int(),
        0.75,
        1.5,
    )
    # torch rounds the softmax weights to BF16 before it sums the values; the twin does not.
    assert_twin(paged_attention, *args, steps=2.0)


@pytest.mark.parametrize("dtype", [torch.float32, *CACHES])
def test_paged_attention_equals_fp64(dtype):
    """The oracle and the twin against the definition, keys by keys."""
    random = Random(4)
    k_cache, v_cache = caches(random, 3, 8, dtype)
    q = random(2, HEADS, DIM)
    scales = (0.5, 2.0)
    args = (k_cache, v_cache, torch.tensor([0, 2], dtype=torch.int32))
    args += (torch.tensor([19], dtype=torch.int32), torch.tensor([[2, 0, 1]], dtype=torch.int32))
    order = [2, 0, 1]
    k = torch.cat([k_cache[block].double() for block in order])
    v = torch.cat([v_cache[block].double() for block in order])
    if dtype == torch.float8_e4m3fn:
        k, v = k * scales[0], v * scales[1]
    expected = torch.empty(2, HEADS, DIM, dtype=torch.float64)
    for row, head in ((row, head) for row in range(2) for head in range(HEADS)):
        keys, values = k[: 18 + row, head // 2], v[: 18 + row, head // 2]
        weights = torch.softmax(keys @ q[row, head].double() / DIM**0.5, 0)
        expected[row, head] = weights @ values
    wide = q.float() if dtype == torch.float32 else q
    tolerance = 1e-6 if dtype == torch.float32 else 2**-7
    names = ["torch"] if dtype == torch.float32 else ["torch", "numba"]
    for name in names:
        found = paged_attention.named(name)(wide, *args, *scales).double()
        assert (found - expected).abs().max() <= tolerance * expected.abs().max()


def test_store_kv():
    random, slots = Random(5), torch.tensor([3, -1, 12])
    k, v = random(3, KV_HEADS, DIM), random(3, KV_HEADS, DIM)
    for name in ("torch", "numba"):
        k_cache, v_cache = caches(random, 2, 8, torch.bfloat16)
        before = k_cache.clone()
        store_kv.named(name)(k, v, k_cache, v_cache, slots, 0.5, 0.5)
        assert torch.equal(k_cache.flatten(0, 1)[[3, 12]], k[[0, 2]])
        assert torch.equal(v_cache.flatten(0, 1)[[3, 12]], v[[0, 2]])
        rest = [slot for slot in range(16) if slot not in (3, 12)]
        assert torch.equal(k_cache.flatten(0, 1)[rest], before.flatten(0, 1)[rest])


def test_store_kv_in_e4m3_scales_and_saturates():
    k = torch.tensor([0.0, 1.0, -447.0, 448.0, 1e6, -1e6, 17.0, 19.0]).view(1, 1, 8)
    k_cache = torch.zeros(1, 2, 1, 8).to(torch.float8_e4m3fn)
    v_cache = k_cache.clone()
    store_kv(k, k, k_cache, v_cache, torch.tensor([1]), 1.0, 0.5)
    # Between 16 and 32 the step is 2: 17 and 19 are ties and go to the even mantissa.
    assert k_cache[0, 1, 0].float().tolist() == [0, 1, -448, 448, 448, -448, 16, 20]
    assert v_cache[0, 1, 0].float().tolist() == [0, 2, -448, 448, 448, -448, 32, 40]
    assert not k_cache[0, 0].float().any()

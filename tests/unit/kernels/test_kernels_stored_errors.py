"""Both implementations give the same bits, and those a plain computation gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hy3.kernels.stored_errors import stored_errors, stored_errors_cpu
from hy3.nvfp4.scales import group_errors, scaled_groups, tensor_scale
from hy3.nvfp4.tensor import NvFp4Tensor, quantize

T = 2.0**-9


def random_parts(seed: int, rows: int = 24, columns: int = 96):
    """Any bytes at all: every sign, code and finite weight pattern occurs."""
    generator = np.random.default_rng(seed)
    bits = generator.integers(0, 2**16, (rows, columns), dtype=np.uint16)
    bits[(bits & 0x7F80) > 0x4400] = 0x3F80
    packed = generator.integers(0, 256, (rows, columns // 2), dtype=np.uint8)
    scales = generator.integers(0, 0x7F, (rows, columns // 16), dtype=np.uint8)
    return bits, packed, scales


@pytest.mark.parametrize("t", [T, 1.0, 2.0**20, 0.0123])
def test_twin_equals_oracle_bit_for_bit(t):
    bits, packed, scales = random_parts(0)
    with np.errstate(over="ignore"):
        twin, oracle = (
            stored_errors_cpu(bits, packed, scales, t),
            stored_errors.oracle(bits, packed, scales, t),
        )
    assert np.array_equal(twin, oracle, equal_nan=True) and twin.shape == (24, 6)


def test_against_a_plain_sum():
    bits, packed, scales = random_parts(1)
    weight = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).double()
    stored = NvFp4Tensor(torch.from_numpy(packed), torch.from_numpy(scales), 1 / T)
    wide = stored.dequantize(torch.float32).double()
    plain = ((weight - wide) / T).square().unflatten(-1, (-1, 16)).sum(-1)
    assert np.allclose(stored_errors(bits, packed, scales, T), plain.numpy(), rtol=1e-5)


@pytest.mark.parametrize("rule", ["max", "exact"])
def test_error_of_what_quantize_stores_is_the_one_its_rule_weighed(rule):
    torch.manual_seed(2)
    weight = torch.randn(16, 128).bfloat16()
    t = tensor_scale(float(weight.abs().max()))
    stored = quantize(weight.float(), t, rule)
    bits = weight.view(torch.int16).numpy().view(np.uint16)
    errors = stored_errors(bits, stored.packed.numpy(), stored.scales.numpy(), t)
    weighed = group_errors(scaled_groups(weight, t), stored.scales)
    assert np.array_equal(errors, weighed.numpy())


def test_nan_scale_gives_nan():
    bits, packed, scales = random_parts(3)
    scales[0, 0] = 0x7F
    for run in (stored_errors_cpu, stored_errors.oracle):
        assert np.isnan(run(bits, packed, scales, T)[0, 0])

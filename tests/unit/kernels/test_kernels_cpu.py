"""The numba building blocks against torch and fp64, at the values where rounding turns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hy3.kernels import cpu


def bf16_bits(x):
    return x.bfloat16().view(torch.uint16).numpy()


def test_narrow_rounds_as_torch_does():
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(2000, generator=generator)
    high = torch.randn(500, generator=generator).bfloat16().float().view(torch.int32)
    ties = [(high + offset).view(torch.float32) for offset in (0x7FFF, 0x8000, 0x8001)]
    edges = torch.tensor([0.0, -0.0, 3.3e38, 1e-40, -1e-40, 2.0**-133, 3.0**-80])
    values = torch.cat([random, *ties, edges])[None]
    out = np.empty(values.shape, np.uint16)
    cpu.narrow_rows(values.numpy(), out)
    assert np.array_equal(out, bf16_bits(values))
    wide = np.empty(values.shape, np.float32)
    cpu.widen_rows(out, wide)
    assert np.array_equal(wide, values.bfloat16().float().numpy())


def test_exp_is_within_two_ulp():
    x = np.linspace(-87, 88, 20001, dtype=np.float32)
    result = np.array([cpu.exp(value) for value in x])
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(result - exact) / exact) < 2 * 2.0**-23
    assert cpu.exp(np.float32(-1000.0)) == cpu.exp(np.float32(-87.0)) < 2e-38
    assert cpu.exp(np.float32(0.0)) == 1.0


@pytest.mark.parametrize(("rows", "size", "features"), [(1, 16, 8), (2, 48, 8), (5, 256, 40)])
def test_project_equals_fp64(rows, size, features):
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(features, size, generator=generator).bfloat16()
    x = torch.randn(rows, size, generator=generator)
    out = np.empty((rows, features), np.float32)
    cpu.project(weight.data_ptr(), size, x.numpy(), out)
    exact = (x.double() @ weight.double().T).numpy()
    assert np.abs(out - exact).max() < 1e-6 * size


def test_project_reads_strided_weights_and_writes_a_window():
    """As attention does: every second head's keys, scores of one block."""
    keys = torch.randn(8, 2, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(2))
    out = np.zeros((3, 24), np.float32)
    cpu.project(keys.data_ptr() + 2 * 16, 32, x.numpy(), out[:, 8:16])
    np.testing.assert_allclose(out[:, 8:16], x @ keys[:, 1].float().T, rtol=1e-5, atol=1e-5)
    assert not out[:, :8].any() and not out[:, 16:].any()


def test_a_row_does_not_depend_on_its_neighbours():
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(64, 256, generator=generator).bfloat16()
    x = torch.randn(7, 256, generator=generator).numpy()
    together = np.empty((7, 64), np.float32)
    cpu.project(weight.data_ptr(), 256, x, together)
    for row in range(7):
        alone = np.empty((1, 64), np.float32)
        cpu.project(weight.data_ptr(), 256, x[row : row + 1], alone)
        assert np.array_equal(alone[0], together[row])


def test_dot_products_add_in_the_documented_order():
    """Sixteen running sums, folded by halves: a cancelling pair shows which lanes meet first."""
    weight = torch.ones(8, 32).bfloat16()
    x = np.zeros((1, 32), np.float32)
    x[0, [0, 16, 8]] = [2.0**30, -(2.0**30), 1.0]  # lane 0 cancels before lane 8 joins
    out = np.empty((1, 8), np.float32)
    cpu.project(weight.data_ptr(), 32, x, out)
    assert out.tolist() == [[1.0] * 8]
    x[0, 16], x[0, 1] = 0.0, -(2.0**30)  # lane 1 meets lane 0 only after lane 8 was absorbed
    cpu.project(weight.data_ptr(), 32, x, out)
    assert out.tolist() == [[0.0] * 8]


def test_serves_and_tileable():
    few, many = torch.zeros(4, 32), torch.zeros(cpu.MAX_ROWS + 1, 32)
    assert cpu.serves(few.bfloat16())
    assert not cpu.serves(few) and not cpu.serves(many.bfloat16())
    assert cpu.tileable(torch.zeros(3, 16, 32))
    assert not cpu.tileable(torch.zeros(16, 24)) and not cpu.tileable(torch.zeros(12, 32))

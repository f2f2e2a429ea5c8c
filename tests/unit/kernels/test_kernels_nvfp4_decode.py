"""The numba decoder gives the oracle's bits and counts."""

from __future__ import annotations

import numpy as np
import pytest

from hy3.kernels.nvfp4_decode import decode_to_bf16


@pytest.mark.parametrize("power_of_two", [True, False])
def test_bits_and_counts_equal_the_oracle(power_of_two: bool) -> None:
    g = np.random.default_rng(0)
    packed = g.integers(0, 256, (37, 48), np.uint8)
    scales = (8 + g.integers(0, 8, (37, 6))) * 2.0 ** g.integers(-9, 5, (37, 6))
    steps = (scales * (2.0**-7 if power_of_two else 1 / 1536.0001)).astype(np.float32)
    fast_bits, fast_count = decode_to_bf16.named("numba")(packed, steps)
    bits, count = decode_to_bf16.oracle(packed, steps)
    assert fast_bits.tobytes() == bits.tobytes()
    assert fast_count == count
    assert (count == 0) == power_of_two


def test_every_code_of_one_group() -> None:
    packed = np.array([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]], np.uint8)
    bits, rounded = decode_to_bf16(packed, np.array([[2.0]], np.float32))
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    assert values.tolist() == [[0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]]
    assert np.signbit(values[0, 8]) and rounded == 0

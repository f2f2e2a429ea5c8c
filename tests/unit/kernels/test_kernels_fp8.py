"""The numba FP8 kernels give the oracle's bits, counts and sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hy3.kernels.fp8_decode import decode_fp8, fp8_errors
from hy3.kernels.fp8_encode import encode_fp8

SHAPE = (150, 290)
TILES = [(1, 290), (128, 128), (150, 290)]


def some_bits(kind: str) -> np.ndarray:
    generator = np.random.default_rng(0)
    if kind == "anything":  # every sign and finite pattern, subnormals and the largest too
        bits = generator.integers(0, 2**16, SHAPE, dtype=np.uint16)
        bits[(bits & 0x7F80) == 0x7F80] = 0x8000
        return bits
    values = generator.standard_normal(SHAPE, np.float32) * 0.02
    values[3] = 0
    values[:, 140:] *= generator.choice([0, 1, 40], SHAPE)[:, 140:]
    return (values.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("kind", ["anything", "weights"])
@pytest.mark.parametrize("tile", TILES)
def test_twins_equal_the_oracles(kind: str, tile: tuple[int, int]) -> None:
    bits = some_bits(kind)
    codes, scales = encode_fp8.named("numba")(bits, tile)
    slow_codes, slow_scales = encode_fp8.oracle(bits, tile)
    assert codes.tobytes() == slow_codes.tobytes() and scales.tobytes() == slow_scales.tobytes()
    fast, count = decode_fp8.named("numba")(codes, scales, tile)
    slow, slow_count = decode_fp8.oracle(codes, scales, tile)
    assert fast.tobytes() == slow.tobytes() and count == slow_count
    sums = fp8_errors.named("numba")(bits, codes, scales, tile)
    assert np.allclose(sums, fp8_errors.oracle(bits, codes, scales, tile), rtol=1e-12, atol=0)


def test_quotients_at_the_edges_of_the_format() -> None:
    """448 and -448 fix the scale at 1: ties, subnormals and the step to the normal numbers."""
    values = [448, -448, 2**-6, 2**-7, 2**-9, 2**-10, 3 * 2**-10, 2**-11, 17, 19, 208, 432, -0.0]
    weight = torch.tensor([values]).bfloat16()
    bits = weight.view(torch.int16).numpy().view(np.uint16)
    codes, scales = encode_fp8.named("numba")(bits, (1, len(values)))
    assert scales.tolist() == [[1.0]]
    expected = weight.float().to(torch.float8_e4m3fn).view(torch.uint8)
    assert codes.tolist() == expected.tolist()


def test_errors_against_a_plain_sum() -> None:
    bits = some_bits("weights")
    codes, scales = encode_fp8(bits, (128, 128))
    wide = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    restored = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    spread = np.kron(scales, np.ones((128, 128), np.float32))[: SHAPE[0], : SHAPE[1]]
    difference = wide - (restored * spread).astype(np.float64)
    errors, energies = fp8_errors(bits, codes, scales, (128, 128))
    assert np.isclose(errors[1, 2], (difference[128:, 256:] ** 2).sum())
    assert np.isclose(energies.sum(), (wide**2).sum())


def test_a_nan_code_gives_nan() -> None:
    bits = np.full((1, 4), 0x3F80, np.uint16)
    codes, scales = np.full((1, 4), 0x7F, np.uint8), np.ones((1, 1), np.float32)
    assert np.isnan(fp8_errors(bits, codes, scales, (1, 4))[0]).all()

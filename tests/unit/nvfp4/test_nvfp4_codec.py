"""The codec against compressed-tensors, torch's float8 and exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8, unpack_fp4_from_uint8
from compressed_tensors.quantization.utils.fp4_utils import cast_to_fp4
from hypothesis import given
from hypothesis import strategies as st

from hy3.nvfp4.codec import (
    E4M3_VALUES,
    decode_e2m1,
    decode_e4m3,
    encode_e2m1,
    encode_e4m3,
    pack_codes,
    unpack_codes,
)

TIES = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32)


def test_all_sixteen_codes() -> None:
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    expected = torch.tensor(values + [-v for v in values])
    codes = torch.arange(16, dtype=torch.uint8)
    assert torch.equal(bits(decode_e2m1(codes)), bits(expected))
    assert encode_e2m1(expected).tolist() == [*range(8), 0, *range(9, 16)]  # -0.0 encodes as 0


def test_ties_go_to_the_even_code_and_neighbours_to_the_nearest() -> None:
    ties = torch.tensor(TIES)
    assert encode_e2m1(ties).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert encode_e2m1(torch.nextafter(ties, torch.tensor(0.0))).tolist() == list(range(7))
    assert encode_e2m1(torch.nextafter(ties, torch.tensor(9.0))).tolist() == list(range(1, 8))
    assert encode_e2m1(-ties).tolist() == [8, 10, 10, 12, 12, 14, 14]


@pytest.mark.parametrize("seed", range(3))
def test_values_and_packing_equal_compressed_tensors(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(64, 64, generator=g)
    x[0, :7], x[1, :7] = torch.tensor(TIES), -torch.tensor(TIES)
    x[2] = -0.0
    x[3] = 0.0
    x[4, :4] = torch.tensor([1e30, -1e30, 6.0, -6.0])
    x[5] = -1e-30
    for case in (x, x.T, x[::2, 8:40]):  # the last two are not contiguous
        expected = pack_fp4_to_uint8(cast_to_fp4(case.clone()))
        packed = pack_codes(encode_e2m1(case))
        assert torch.equal(packed, expected)
        decoded = decode_e2m1(unpack_codes(packed))
        theirs = unpack_fp4_from_uint8(packed, *case.shape, dtype=torch.float32)
        assert torch.equal(bits(decoded), bits(theirs))


def test_e4m3_decodes_all_256_patterns_as_torch() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(torch.float8_e4m3fn).float()
    got = decode_e4m3(codes)
    nan = expected.isnan()
    assert torch.equal(got.isnan(), nan) and int(nan.sum()) == 2
    assert torch.equal(bits(got[~nan]), bits(expected[~nan]))
    assert torch.equal(encode_e4m3(got)[~nan], codes[~nan])


def test_e4m3_rounds_as_torch_and_saturates() -> None:
    g = torch.Generator().manual_seed(1)
    spread = torch.randn(50_000, generator=g) * torch.exp2(
        torch.randint(-14, 9, (50_000,), generator=g)
    )
    midpoints = (E4M3_VALUES[1:] + E4M3_VALUES[:-1]) / 2
    x = torch.cat([spread, midpoints, -midpoints, torch.tensor([0.0, -0.0])]).clamp(-448, 448)
    assert torch.equal(encode_e4m3(x), x.to(torch.float8_e4m3fn).view(torch.uint8))
    beyond = torch.tensor([449.0, 1e9, float("inf"), -float("inf"), float("nan")])
    assert encode_e4m3(beyond).tolist() == [0x7E, 0x7E, 0x7E, 0xFE, 0x7F]


@given(st.floats(-8, 8, width=32))
def test_encode_e2m1_is_a_nearest_value(x: float) -> None:
    code = int(encode_e2m1(torch.tensor([x]))[0])
    values = [Fraction(v) for v in (0, "1/2", 1, "3/2", 2, 3, 4, 6)]
    distances = [abs(abs(Fraction(x)) - v) for v in values]
    assert distances[code & 7] == min(distances)
    assert (code >= 8) == (x < 0)


@given(st.lists(st.integers(0, 15), min_size=2, max_size=64).filter(lambda c: len(c) % 2 == 0))
def test_pack_and_unpack_are_inverse(codes: list[int]) -> None:
    packed = pack_codes(torch.tensor(codes, dtype=torch.uint8))
    assert packed.tolist() == [a + 16 * b for a, b in zip(codes[::2], codes[1::2], strict=True)]
    assert unpack_codes(packed).tolist() == codes

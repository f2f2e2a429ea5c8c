"""FP8 tensors: compressed-tensors' bytes and decoder, torch's own cast, zeros, edges, extremes."""

from __future__ import annotations

import pytest
import torch
from compressed_tensors.compressors.naive_quantized import FloatQuantizationCompressor
from hypothesis import given
from hypothesis import strategies as st

from hy3.fp8.tensor import Fp8Tensor, quantize
from support.distributions import NAMES, make_weight
from support.foreign_decoder import decode_fp8, fp8_scheme

BLOCK = (128, 128)


def channel(weight: torch.Tensor) -> tuple[int, int]:
    return (1, weight.shape[1])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("block", [False, True])
def test_bytes_and_values_equal_compressed_tensors(name: str, block: bool) -> None:
    weight = make_weight(name, 8192)[:300, :400]
    ours = quantize(weight, BLOCK if block else channel(weight))
    state = {"weight": weight.float(), "weight_scale": ours.scales}
    theirs = FloatQuantizationCompressor.compress(state, fp8_scheme(block))["weight"]
    assert torch.equal(ours.codes, theirs.view(torch.uint8))
    decoded = decode_fp8(ours.codes, ours.scales, block)
    assert torch.equal(ours.dequantize(torch.float32), decoded)


def test_scales_are_amax_over_448_of_each_tile() -> None:
    weight = torch.zeros(130, 257, dtype=torch.bfloat16)
    weight[0, 0], weight[1, 256], weight[129, 255] = 448.0, -4.5, 3.5
    one, other = (float(torch.tensor(amax) / 448) for amax in (4.5, 3.5))
    assert quantize(weight, channel(weight)).scales[:2, 0].tolist() == [1.0, one]
    assert quantize(weight, channel(weight)).scales[2, 0] == 1.0  # a row of zeros
    expected = torch.tensor([[1.0, 1.0, one], [1.0, other, 1.0]])
    assert torch.equal(quantize(weight, BLOCK).scales, expected)
    assert torch.equal(quantize(weight, (130, 257)).scales, torch.tensor([[1.0]]))


@given(st.lists(st.integers(0, 0x7F7F), min_size=8, max_size=8), st.integers(0, 255))
def test_codes_are_torchs_cast_of_the_quotient(magnitudes: list[int], signs: int) -> None:
    patterns = [m | 0x8000 * (signs >> i & 1) for i, m in enumerate(magnitudes)]
    weight = torch.tensor(patterns, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    weight = weight.view(1, 8)
    ours = quantize(weight, channel(weight))
    quotient = (weight.float() / ours.scales).clamp(-448, 448)
    assert torch.equal(ours.codes, quotient.to(torch.float8_e4m3fn).view(torch.uint8))
    assert bool(ours.dequantize(torch.float32).isfinite().all())


def test_the_least_weights_do_not_overflow() -> None:
    weight = torch.tensor([[1, -32767, 0, 100]], dtype=torch.int16).view(torch.bfloat16)
    tensor = quantize(weight, channel(weight))
    assert tensor.scales.tolist() == [[2.0**-126]]
    assert tensor.dequantize(torch.float32).abs().max() <= weight.float().abs().max() + 2.0**-136


def test_every_code_under_a_scale() -> None:
    codes = torch.arange(0x7F, dtype=torch.uint8).view(1, -1)
    values = Fp8Tensor(codes, torch.tensor([[0.5]]), (1, 0x7F)).dequantize(torch.float32)
    assert torch.equal(values, codes.view(torch.float8_e4m3fn).float() * 0.5)

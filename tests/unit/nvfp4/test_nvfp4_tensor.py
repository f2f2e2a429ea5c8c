"""Packed tensors: the worked example, compressed-tensors' bytes and its decoder."""

from __future__ import annotations

import itertools

import pytest
import torch
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam

from hy3.nvfp4.codec import E2M1_VALUES, E4M3_VALUES, encode_e4m3, pack_codes
from hy3.nvfp4.scales import tensor_scale
from hy3.nvfp4.tensor import NvFp4Tensor, quantize, quantize_with_scales
from support.distributions import NAMES, make_weight
from support.foreign_decoder import ARGS, SCHEME, decode


def compress_theirs(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """compressed-tensors' own divisor, scales and packed bytes."""
    groups = weight.unflatten(-1, (-1, 16))
    divisor = generate_gparam(weight.min(), weight.max())
    args = ARGS.model_copy(update={"scale_dtype": torch.float8_e4m3fn})
    scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), args, global_scale=divisor)
    state = {"weight": weight, "weight_scale": scale, "weight_global_scale": divisor}
    return NVFP4PackedCompressor.compress(state, SCHEME)


def assert_decoded_alike(tensor: NvFp4Tensor) -> None:
    theirs = decode(tensor.packed, tensor.scales, tensor.divisor)
    assert torch.equal(tensor.dequantize().view(torch.int16), theirs.view(torch.int16))


def check_against_theirs(weight: torch.Tensor) -> None:
    theirs = compress_theirs(weight)
    divisor = float(theirs["weight_global_scale"])
    scales = theirs["weight_scale"].view(torch.uint8)
    ours = quantize_with_scales(weight, scales, divisor)
    assert torch.equal(ours.packed, theirs["weight_packed"])
    assert_decoded_alike(ours)


@pytest.mark.parametrize("name", NAMES)
def test_bytes_equal_compressed_tensors(name: str) -> None:
    check_against_theirs(make_weight(name, 4096))


def test_bytes_equal_compressed_tensors_on_a_view() -> None:
    wide = make_weight("gauss", 4096)
    check_against_theirs(wide[::2, 512:])
    check_against_theirs(make_weight("t4", 4096).T[:, :32])


def test_max_scales_equal_compressed_tensors_under_its_divisor() -> None:
    weight = make_weight("real-like", 4096)
    theirs = compress_theirs(weight)
    amax = weight.unflatten(-1, (-1, 16)).abs().amax(-1)
    # amax / 6 stays in BF16 there, so it is rounded once more than in our rule.
    ours = encode_e4m3(theirs["weight_global_scale"] * (amax / 6.0).float())
    ours = torch.where(ours == 0, 0x20, ours)
    assert torch.equal(ours, theirs["weight_scale"].view(torch.uint8))


def worked_example() -> torch.Tensor:
    """Two rows that cover the signs, -0, a zero group, ties and saturation of one scale."""
    weight = torch.stack([(torch.arange(32) - 16) / 16, (torch.arange(32) - 16) / 64])
    weight[0, 5] = -1.75
    weight[1, :16] = 0
    weight[1, 20] = 0.013
    return weight.to(torch.bfloat16)


def test_worked_example() -> None:
    divisor = float(2688.0 / worked_example().abs().max().float())
    assert divisor == 1536.0001220703125
    scales = torch.tensor([[0x7E, 0x77], [0x20, 0x67]], dtype=torch.uint8)
    tensor = quantize_with_scales(worked_example(), scales, divisor)
    assert tensor.packed[0].numpy().tobytes().hex() == "ddddfdccbbab9a891022435465667677"
    assert tensor.packed[1].numpy().tobytes().hex() == "00000000000000001022415465667677"
    decoded = tensor.dequantize(torch.float32)
    assert decoded[0, :8].tolist() == pytest.approx(
        [-0.875] * 5 + [-1.75, -0.58333, -0.58333], rel=1e-4
    )
    assert decoded[1, 16:21].tolist() == pytest.approx(
        [0, 0.01953125, 0.0390625, 0.0390625, 0.01953125], rel=1e-4
    )
    error = (worked_example().float() - decoded).abs().amax(-1)
    assert error.tolist() == pytest.approx([0.125, 0.03125], rel=1e-4)


def test_scales_of_the_worked_example_are_compressed_tensors() -> None:
    theirs = compress_theirs(worked_example())
    assert theirs["weight_scale"].view(torch.uint8).tolist() == [[0x7E, 0x77], [0x20, 0x67]]


@pytest.mark.parametrize("rule", ["max", "four-over-six", "exact"])
@pytest.mark.parametrize("name", ["gauss", "tinygroups", "saturated"])
def test_our_tensors_decode_without_rounding_and_as_theirs(name: str, rule: str) -> None:
    weight = make_weight(name, 1024)
    tensor = quantize(weight, tensor_scale(float(weight.abs().max())), rule)
    assert torch.equal(tensor.dequantize().float(), tensor.dequantize(torch.float32))
    assert_decoded_alike(tensor)
    assert tensor.shape == tuple(weight.shape)


@pytest.mark.parametrize("power", [-100, -8, 0, 90])
def test_every_scale_times_every_value_is_exact_in_bf16(power: int) -> None:
    for code, index in itertools.product(range(8, 127), range(8)):
        exact = float(E4M3_VALUES[code]) * float(E2M1_VALUES[index]) * 2.0**power
        codes = torch.full((1, 16), index, dtype=torch.uint8)
        scales = torch.tensor([[code]], dtype=torch.uint8)
        tensor = NvFp4Tensor(pack_codes(codes), scales, 2.0**-power)
        assert float(tensor.dequantize()[0, 0]) == exact

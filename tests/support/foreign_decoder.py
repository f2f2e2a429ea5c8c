"""compressed-tensors' own decoders of NVFP4 and FP8, as independent readers of our bytes."""

from __future__ import annotations

import torch
from compressed_tensors.compressors.naive_quantized import FloatQuantizationCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from torch import Tensor

ARGS = QuantizationArgs(
    num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16, dynamic=False
)
SCHEME = QuantizationScheme(targets=["Linear"], weights=ARGS)


def decode(packed: Tensor, scales: Tensor, divisor: float) -> Tensor:
    """BF16 [out, in] of packed codes, E4M3 patterns (uint8) and ``weight_global_scale``."""
    state = {
        "weight_packed": packed,
        "weight_scale": scales.view(torch.float8_e4m3fn),
        "weight_global_scale": torch.tensor([divisor]),
    }
    return NVFP4PackedCompressor.decompress(state, SCHEME)["weight"]


def fp8_scheme(block: bool) -> QuantizationScheme:
    """compressed-tensors' description of FP8 under a scale for each block or each row."""
    weights = {"strategy": "block", "block_structure": [128, 128]} if block else {}
    plain = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
    args = QuantizationArgs(**plain, **(weights or {"strategy": "channel"}))
    return QuantizationScheme(targets=["Linear"], weights=args)


def decode_fp8(codes: Tensor, scales: Tensor, block: bool) -> Tensor:
    """fp32 [out, in] of E4M3 patterns (uint8) and fp32 scales in the stored shape."""
    state = {"weight": codes.view(torch.float8_e4m3fn), "weight_scale": scales}
    return FloatQuantizationCompressor.decompress(state, fp8_scheme(block))["weight"]

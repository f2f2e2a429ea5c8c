"""compressed-tensors' own decoder of packed NVFP4, as an independent reader of our bytes."""

from __future__ import annotations

import torch
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

"""``NvFp4Tensor``: one quantized matrix as it is stored, and its way from and back to floats."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hy3.nvfp4.codec import (
    GROUP_SIZE,
    decode_e2m1,
    decode_e4m3,
    encode_e2m1,
    pack_codes,
    unpack_codes,
)
from hy3.nvfp4.scales import search_scales


@dataclass(frozen=True)
class NvFp4Tensor:
    """``W~ = value(code) * (scale / divisor)``; the three fields are the three stored tensors."""

    packed: Tensor  # uint8 [out, in / 2], low nibble = even column
    scales: Tensor  # uint8 [out, in / 16], E4M3FN bit patterns
    divisor: float  # weight_global_scale: 1 / t for files of ours

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in] of the matrix."""
        return self.packed.shape[0], self.packed.shape[1] * 2

    def dequantize(self, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """[out, in]; computed in fp32, then rounded. BF16 is exact for a power-of-two divisor."""
        scale = _group_scales(self.scales, self.divisor)
        values = decode_e2m1(unpack_codes(self.packed)).unflatten(-1, (-1, GROUP_SIZE))
        return (values * scale).flatten(-2).to(dtype)


def quantize_with_scales(weight: Tensor, scales: Tensor, divisor: float) -> NvFp4Tensor:
    """Round ``weight`` [out, in] under given E4M3 codes [out, in / 16]."""
    groups = weight.float().unflatten(-1, (-1, GROUP_SIZE))
    codes = encode_e2m1(groups / _group_scales(scales, divisor)).flatten(-2)
    return NvFp4Tensor(pack_codes(codes), scales, divisor)


def quantize(weight: Tensor, t: float, rule: str) -> NvFp4Tensor:
    """``weight`` [out, in], finite, under one of the scale rules and tensor scale t."""
    return quantize_with_scales(weight, search_scales(weight, t, rule), 1.0 / t)


def _group_scales(scales: Tensor, divisor: float) -> Tensor:
    # A tensor divisor keeps the division in fp32; a Python float would multiply by 1 / divisor.
    return (decode_e4m3(scales) / torch.tensor([divisor], device=scales.device)).unsqueeze(-1)

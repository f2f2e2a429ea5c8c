"""``Fp8Tensor``: one FP8 matrix as it is stored, and its way from and back to floats.

``W~ = value(code) * scale``. The scale of a tile is ``amax / 448`` of its weights in fp32, 1.0
where all are zero, and never under the least normal fp32 number, so that no quotient overflows.
A code is the E4M3 number nearest to the fp32 quotient ``w / scale``, a tie to the even code,
beyond 448 the largest.

A tile is given by its (rows, columns): one row, a 128 x 128 block, or the whole matrix. Tiles at
the lower and right edges may be smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hy3.nvfp4.codec import decode_e4m3, encode_e4m3

E4M3_MAX = 448.0
LEAST_SCALE = 2.0**-126

Tile = tuple[int, int]


@dataclass(frozen=True)
class Fp8Tensor:
    """The two stored tensors, and the tile that one scale stands for."""

    codes: Tensor  # uint8 [out, in], E4M3FN bit patterns
    scales: Tensor  # fp32 [tiles down, tiles across]
    tile: Tile

    def dequantize(self, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """[out, in]; the product in fp32, then rounded."""
        return (decode_e4m3(self.codes) * _spread(self.scales, self.codes, self.tile)).to(dtype)


def grid_of(shape: tuple[int, ...], tile: Tile) -> tuple[int, int]:
    """Tiles down and across a matrix."""
    return -(-shape[0] // tile[0]), -(-shape[1] // tile[1])


def quantize(weight: Tensor, tile: Tile) -> Fp8Tensor:
    """``weight`` [out, in], finite, with one scale for each tile."""
    wide = weight.float()
    down, across = grid_of(tuple(wide.shape), tile)
    padded = torch.zeros(down * tile[0], across * tile[1])
    padded[: wide.shape[0], : wide.shape[1]] = wide.abs()
    amax = padded.unflatten(0, (down, tile[0])).unflatten(2, (across, tile[1])).amax((1, 3))
    scales = torch.where(amax == 0, 1.0, (amax / E4M3_MAX).clamp(min=LEAST_SCALE))
    return Fp8Tensor(encode_e4m3(wide / _spread(scales, wide, tile)), scales, tile)


def _spread(scales: Tensor, like: Tensor, tile: Tile) -> Tensor:
    """The scale of every element: [tiles down, tiles across] -> [out, in]."""
    wide = scales.repeat_interleave(tile[0], 0).repeat_interleave(tile[1], 1)
    return wide[: like.shape[0], : like.shape[1]]

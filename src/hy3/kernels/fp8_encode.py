"""BF16 bits to FP8 codes and scales; the rule is that of ``hy3.fp8.tensor``, the oracle."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from hy3.fp8.tensor import E4M3_MAX, LEAST_SCALE, Tile, grid_of, quantize
from hy3.kernels.dispatch import operation

_LEAST = np.float32(LEAST_SCALE)
_MAX = np.float32(E4M3_MAX)
_LEAST_NORMAL = np.float32(2.0**-6)
# fp32 bits >> 20 of a normal E4M3 number are its code plus this.
_CODE_OFFSET = np.uint32((127 - 7) << 3)
# Adding it rounds to steps of 2^-9, those of subnormal E4M3 numbers, and leaves their count in
# the lowest bits.
_ROUNDER = np.float32(2.0**14)
_ROUNDER_BITS = np.uint32(_ROUNDER.view(np.uint32))


@operation
def encode_fp8(
    bits: NDArray[np.uint16], tile: Tile
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """E4M3 patterns [out, in] and scales [tiles down, tiles across] of finite BF16 patterns."""
    weight = torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch.bfloat16)
    tensor = quantize(weight, tile)
    return tensor.codes.numpy(), tensor.scales.numpy()


@encode_fp8.twin("numba", when=lambda bits, tile: True)
def _encode_fp8_numba(
    bits: NDArray[np.uint16], tile: Tile
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    codes = np.empty(bits.shape, np.uint8)
    scales = np.empty(grid_of(bits.shape, tile), np.float32)
    _encode_tiles(np.ascontiguousarray(bits), tile[0], tile[1], codes, scales)
    return codes, scales


@njit(cache=True, nogil=True, error_model="numpy")
def _encode_tiles(
    bits: NDArray[np.uint16],
    tile_rows: int,
    tile_columns: int,
    codes: NDArray[np.uint8],
    scales: NDArray[np.float32],
) -> None:
    rows, columns = bits.shape
    patterns = np.empty(columns, np.uint32)
    divisors = np.empty(columns, np.float32)  # the scale of each column in the tiles of a band
    columnwise = np.empty(columns, np.uint16)
    for i in range(scales.shape[0]):
        top, bottom = i * tile_rows, min((i + 1) * tile_rows, rows)
        _largest_of_columns(bits[top:bottom], columnwise)
        for j in range(scales.shape[1]):
            left, right = j * tile_columns, min((j + 1) * tile_columns, columns)
            largest = np.uint16(0)
            for column in range(left, right):
                largest = max(largest, columnwise[column])
            scales[i, j] = _scale(largest, patterns)
            divisors[left:right] = scales[i, j]
        for row in range(top, bottom):
            _encode_row(bits[row], divisors, patterns, codes[row])


@njit(cache=True, nogil=True)
def _largest_of_columns(bits: NDArray[np.uint16], largest: NDArray[np.uint16]) -> None:
    largest[:] = 0
    for row in range(bits.shape[0]):
        for column in range(largest.size):
            largest[column] = max(largest[column], bits[row, column] & np.uint16(0x7FFF))


@njit(cache=True, nogil=True, error_model="numpy")
def _scale(largest: np.uint16, patterns: NDArray[np.uint32]) -> np.float32:
    if largest == 0:
        return np.float32(1)
    patterns[0] = np.uint32(largest) << np.uint32(16)
    return max(patterns.view(np.float32)[0] / _MAX, _LEAST)


@njit(cache=True, nogil=True, error_model="numpy")
def _encode_row(
    bits: NDArray[np.uint16],
    divisors: NDArray[np.float32],
    patterns: NDArray[np.uint32],
    codes: NDArray[np.uint8],
) -> None:
    """Loops without branches over whole rows, so that they become vector instructions."""
    values = patterns.view(np.float32)
    for k in range(bits.size):
        patterns[k] = (np.uint32(bits[k]) & np.uint32(0x7FFF)) << np.uint32(16)
    for k in range(bits.size):
        quotient = values[k] / divisors[k]
        small = quotient < _LEAST_NORMAL
        values[k] = quotient + _ROUNDER if small else quotient
        # Two sums of bits; the one that does not apply is not taken.
        pattern = patterns[k]
        even = (pattern >> np.uint32(20)) & np.uint32(1)
        normal = ((pattern + np.uint32(0x7FFFF) + even) >> np.uint32(20)) - _CODE_OFFSET
        code = pattern - _ROUNDER_BITS if small else min(normal, np.uint32(0x7E))
        codes[k] = np.uint8(code | ((np.uint32(bits[k]) >> np.uint32(8)) & np.uint32(0x80)))

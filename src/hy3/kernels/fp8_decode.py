"""FP8 to BF16 bits, with a count of the values that BF16 had to round; and the error of FP8."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from hy3.fp8.tensor import Fp8Tensor, Tile
from hy3.kernels.dispatch import operation
from hy3.nvfp4.codec import decode_e4m3

_VALUES = decode_e4m3(torch.arange(256, dtype=torch.uint8)).numpy()

Bytes, Floats, Halves = NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint16]


@operation
def decode_fp8(codes: Bytes, scales: Floats, tile: Tile) -> tuple[Halves, int]:
    """BF16 patterns [out, in] of value(code) * scale, and how many products were not exact.

    Args:
        codes: E4M3 patterns [out, in], none NaN
        scales: finite fp32 [tiles down, tiles across]
    """
    tensor = Fp8Tensor(torch.from_numpy(codes), torch.from_numpy(scales), tile)
    exact = tensor.dequantize(torch.float32)
    rounded = exact.bfloat16()
    return rounded.view(torch.int16).numpy().view(np.uint16), int((rounded.float() != exact).sum())


@decode_fp8.twin("numba", when=lambda codes, scales, tile: True)
def _decode_fp8_numba(codes: Bytes, scales: Floats, tile: Tile) -> tuple[Halves, int]:
    bits = np.empty(codes.shape, np.uint16)
    rounded = _decode_tiles(np.ascontiguousarray(codes), scales, tile[0], tile[1], _VALUES, bits)
    return bits, int(rounded)


@njit(cache=True, nogil=True)
def _decode_tiles(
    codes: Bytes, scales: Floats, tile_rows: int, tile_columns: int, values: Floats, bits: Halves
) -> int:
    rounded = 0
    products = np.empty(tile_columns, np.float32)
    patterns = products.view(np.uint32)
    for row in range(codes.shape[0]):
        for j in range(scales.shape[1]):
            left = j * tile_columns
            right = min(left + tile_columns, codes.shape[1])
            for column in range(left, right):
                product = values[codes[row, column]] * scales[row // tile_rows, j]
                products[column - left] = product
            for column in range(left, right):
                pattern = patterns[column - left]
                # To nearest, a tie to even.
                lift = np.uint32(0x7FFF) + ((pattern >> np.uint32(16)) & np.uint32(1))
                bits[row, column] = np.uint16((pattern + lift) >> np.uint32(16))
                rounded += (pattern & np.uint32(0xFFFF)) != 0
    return rounded


@operation
def fp8_errors(bits: Halves, codes: Bytes, scales: Floats, tile: Tile) -> NDArray[np.float64]:
    """Squared error of each tile and sum of its squared weights: [2, tiles down, tiles across].

    Differences and squares are exact in fp64 or nearly; the sums go row by row.
    """
    weight = torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch.bfloat16)
    tensor = Fp8Tensor(torch.from_numpy(codes), torch.from_numpy(scales), tile)
    wide = weight.double()
    difference = wide - tensor.dequantize(torch.float32).double()
    down, across = scales.shape
    padded = torch.zeros(2, down * tile[0], across * tile[1], dtype=torch.float64)
    squares = torch.stack([difference, wide]).square()
    padded[:, : bits.shape[0], : bits.shape[1]] = squares
    tiles = padded.unflatten(1, (down, tile[0])).unflatten(3, (across, tile[1]))
    sums: NDArray[np.float64] = tiles.sum((2, 4)).numpy()
    return sums


@fp8_errors.twin("numba", when=lambda bits, codes, scales, tile: True)
def _fp8_errors_numba(
    bits: Halves, codes: Bytes, scales: Floats, tile: Tile
) -> NDArray[np.float64]:
    sums = np.zeros((2, *scales.shape))
    codes, bits = np.ascontiguousarray(codes), np.ascontiguousarray(bits)
    _add_tiles(bits, codes, scales, tile[0], tile[1], _VALUES, sums)
    return sums


@njit(cache=True, nogil=True)
def _add_tiles(
    bits: Halves,
    codes: Bytes,
    scales: Floats,
    tile_rows: int,
    tile_columns: int,
    values: Floats,
    sums: NDArray[np.float64],
) -> None:
    pattern = np.empty(1, np.uint32)
    weight = pattern.view(np.float32)
    for row in range(codes.shape[0]):
        i = row // tile_rows
        for j in range(scales.shape[1]):
            left = j * tile_columns
            error, energy = 0.0, 0.0
            for column in range(left, min(left + tile_columns, codes.shape[1])):
                pattern[0] = np.uint32(bits[row, column]) << np.uint32(16)
                wide = np.float64(weight[0])
                difference = wide - np.float64(values[codes[row, column]] * scales[i, j])
                error += difference * difference
                energy += wide * wide
            sums[0, i, j] += error
            sums[1, i, j] += energy

"""BF16 bits to packed NVFP4 in one pass: the scale of every group, its codes and its errors.

The rules and the order of the sums are those of ``hy3.nvfp4.scales``; the oracle below is that of
``scale_search_tensor`` on arrays, the numba twin (``scale_search_lanes``) gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from hy3.kernels.dispatch import operation
from hy3.kernels.lanes import LANES
from hy3.kernels.scale_search_lanes import quantize_blocks, weight_table
from hy3.kernels.scale_search_tensor import quantize_tensor
from hy3.nvfp4.codec import GROUP_SIZE
from hy3.nvfp4.scales import MAX_SHIFT, RULES

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Quantized:
    """One matrix under one rule. Errors and energies are fp32 sums in units of t squared.

    Under column weights each square in those sums is multiplied by the weight of its column.
    """

    packed: NDArray[np.uint8]  # [out, in / 2]
    scales: NDArray[np.uint8]  # [out, in / 16], E4M3 bit patterns
    errors: NDArray[np.float32]  # [out, in / 16], squared error of each group
    max_errors: NDArray[np.float32]  # [out, in / 16], the same under rule max
    energies: NDArray[np.float32]  # [out, in / 16], sum of the squares of the weights
    shifts: NDArray[np.int64]  # [33], groups by chosen code less that of rule max, -16 to 16


@operation
def quantize_bits(
    bits: NDArray[np.uint16], t: float, rule: str, column_weights: Floats | None = None
) -> Quantized:
    """Quantize finite BF16 patterns [out, in] under a rule; ``t`` is a power of two.

    ``column_weights``: fp32 [in], not negative; see ``hy3.nvfp4.scales.search_scales``.
    """
    weight = torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch.bfloat16)
    h = None if column_weights is None else torch.from_numpy(column_weights)
    result = quantize_tensor.oracle(weight, t, rule, h)
    return Quantized(
        packed=result.packed.numpy(),
        scales=result.scales.numpy(),
        errors=result.errors.numpy(),
        max_errors=result.max_errors.numpy(),
        energies=result.energies.numpy(),
        shifts=result.shifts.numpy(),
    )


@quantize_bits.twin("numba", when=lambda bits, t, rule, column_weights=None: True)
def _quantize_bits_numba(
    bits: NDArray[np.uint16], t: float, rule: str, column_weights: Floats | None = None
) -> Quantized:
    rows, columns = bits.shape
    grid = (rows, columns // GROUP_SIZE)
    groups = rows * grid[1]
    padding = -groups % LANES
    packed = np.empty((groups + padding) * 2, np.uint32)
    scales = np.empty(groups + padding, np.uint8)
    errors, max_errors, energies = np.empty((3, groups + padding), np.float32)
    counts = np.zeros((2 * MAX_SHIFT + 1, LANES), np.int64)
    for patterns, first in _blocks(np.require(bits, requirements="CA").reshape(-1)):
        quantize_blocks(
            patterns,
            np.float32(t),
            RULES.index(rule),
            None if column_weights is None else weight_table(column_weights),
            grid[1],
            first,
            packed,
            scales,
            errors,
            max_errors,
            energies,
            counts,
        )
    shifts = counts.sum(1)
    shifts[MAX_SHIFT] -= padding  # groups of zeros, each without a shift
    return Quantized(
        packed=packed.view(np.uint8)[: groups * GROUP_SIZE // 2].reshape(rows, columns // 2),
        scales=scales[:groups].reshape(grid),
        errors=errors[:groups].reshape(grid),
        max_errors=max_errors[:groups].reshape(grid),
        energies=energies[:groups].reshape(grid),
        shifts=shifts,
    )


def _blocks(patterns: NDArray[np.uint16]) -> Iterator[tuple[NDArray[np.uint16], int]]:
    """Whole blocks of 16 groups with the number of their first group, the last filled up by 0."""
    size = LANES * GROUP_SIZE
    whole = patterns.size - patterns.size % size
    yield patterns[:whole], 0
    if whole < patterns.size:
        last = np.zeros(size, np.uint16)
        last[: patterns.size - whole] = patterns[whole:]
        yield last, whole // GROUP_SIZE


def largest_magnitude(bits: NDArray[np.uint16]) -> float:
    """max |w| of BF16 patterns of any shape; NaN or infinity if there is one among them."""
    largest = _largest_bits(np.ascontiguousarray(bits).reshape(-1))
    return float(np.array([largest << 16], np.uint32).view(np.float32)[0])


@njit(cache=True, nogil=True)
def _largest_bits(bits: NDArray[np.uint16]) -> np.uint16:
    largest = np.uint16(0)
    for i in range(bits.size):
        magnitude = bits[i] & np.uint16(0x7FFF)
        largest = magnitude if magnitude > largest else largest
    return largest

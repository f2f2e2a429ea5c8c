"""BF16 bits to packed NVFP4 in one pass: the scale of every group, its codes and its errors.

The rules and the order of the sums are those of ``hy3.nvfp4.scales``; the oracle below is that of
``scale_search_tensor`` on arrays, the numba twin gives the same bytes. It searches 64 groups side
by side, one in each lane, so that the inner loops become vector instructions; all lanes go on until
none can improve.

Three facts make the twin exact without float64 (v is a scale, x = |w| / t has 8 significant bits):
rounding x * (1 / v) can differ from rounding x / v only on a tie, where both sides are equally far;
x - v q and its square are exact; the sum runs over the elements in order, as in the oracle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ir
import numpy as np
import torch
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from hy3.kernels.dispatch import operation
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


def _without_weights(
    bits: NDArray[np.uint16], t: float, rule: str, column_weights: Floats | None = None
) -> bool:
    return column_weights is None


@quantize_bits.twin("numba", when=_without_weights)
def _quantize_bits_numba(
    bits: NDArray[np.uint16], t: float, rule: str, column_weights: Floats | None = None
) -> Quantized:
    rows, columns = bits.shape
    grid = (rows, columns // GROUP_SIZE)
    packed = np.empty((rows, columns // 2), np.uint8)
    scales = np.empty(grid, np.uint8)
    errors, max_errors, energies = (np.empty(grid, np.float32) for _ in range(3))
    shifts = np.zeros(2 * MAX_SHIFT + 1, np.int64)
    _quantize_groups(
        np.ascontiguousarray(bits).reshape(-1, GROUP_SIZE),
        np.float32(t),
        RULES.index(rule),
        packed.reshape(-1, GROUP_SIZE // 2),
        scales.reshape(-1),
        errors.reshape(-1),
        max_errors.reshape(-1),
        energies.reshape(-1),
        shifts,
    )
    return Quantized(packed, scales, errors, max_errors, energies, shifts)


def largest_magnitude(bits: NDArray[np.uint16]) -> float:
    """max |w| of BF16 patterns of any shape; NaN or infinity if there is one among them."""
    largest = _largest_bits(np.ascontiguousarray(bits).reshape(-1))
    return float(np.array([largest << 16], np.uint32).view(np.float32)[0])


_LANES = 64
Ints = NDArray[np.int32]
Words, Bytes = NDArray[np.uint16], NDArray[np.uint8]
_SIX, _ONE, _TWO = np.float32(6), np.float32(1), np.float32(2)
_EXPONENT_MASK = np.uint32(0x7F800000)
# Added to the bits of 2^e it gives 1.5 * 2^(e + 22): adding and subtracting that number rounds to
# steps of 2^(e - 1), a tie to even.
_ROUNDER = np.uint32((22 << 23) | 0x400000)
# fp32 bits >> 20 of a normal E4M3 number are its code plus this.
_CODE_OFFSET = np.int32((127 - 7) << 3)


@intrinsic
def _as_bits(context: Any, value: Any) -> Any:
    """The 32 bits of a float32 (a reinterpretation, no conversion)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def _as_float(context: Any, bits: Any) -> Any:
    """The float32 of 32 bits (a reinterpretation, no conversion)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@njit(cache=True, nogil=True)
def _largest_bits(bits: Words) -> np.uint16:
    largest = np.uint16(0)
    for i in range(bits.size):
        magnitude = bits[i] & np.uint16(0x7FFF)
        largest = magnitude if magnitude > largest else largest
    return largest


@njit(inline="always")
def _round_e2m1(y: np.float32) -> np.float32:
    """Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6 for y >= 0, a tie to the even code."""
    y = y if y < _SIX else _SIX
    at_least_one = y if y > _ONE else _ONE
    rounder = _as_float((_as_bits(at_least_one) & _EXPONENT_MASK) + _ROUNDER)
    return (y + rounder) - rounder


@njit(inline="always")
def _scale_value(code: np.int32) -> np.float32:
    return _as_float(np.uint32((code + _CODE_OFFSET) << np.int32(20)))


@njit(inline="always")
def _nearest_code(scale: np.float32) -> np.int32:
    """E4M3 code nearest to a positive scale, a tie to even, within 8..126."""
    bits = np.int32(_as_bits(scale))
    code = (bits + np.int32(0x7FFFF) + ((bits >> np.int32(20)) & np.int32(1))) >> np.int32(20)
    code -= _CODE_OFFSET
    code = code if code > np.int32(8) else np.int32(8)
    return code if code < np.int32(126) else np.int32(126)


@njit(inline="always")
def _first_code(amax: np.float32) -> np.int32:
    """The larger of 15 and the smallest code whose value is >= amax / 3.5; at most 126."""
    bits = np.int32(_as_bits(amax / np.float32(3.5)))
    code = ((bits + np.int32(0xFFFFF)) >> np.int32(20)) - _CODE_OFFSET
    code = code if code > np.int32(15) else np.int32(15)
    return code if code < np.int32(126) else np.int32(126)


@njit(cache=True, nogil=True, error_model="numpy")
def _lane_errors(
    x: Floats, codes: Ints, scale: Floats, inverse: Floats, errors: Floats, lanes: int
) -> None:
    """errors[lane] = squared error of the group in that lane under codes[lane]. x [16, lanes]."""
    for lane in range(lanes):
        scale[lane] = _scale_value(codes[lane])
        inverse[lane] = _ONE / scale[lane]
        errors[lane] = np.float32(0)
    for element in range(GROUP_SIZE):
        row = x[element]
        for lane in range(lanes):
            value = row[lane]
            difference = value - _round_e2m1(value * inverse[lane]) * scale[lane]
            errors[lane] += difference * difference


@njit(cache=True, nogil=True, error_model="numpy")
def _encode_lanes(groups: Words, step: Floats, codes: Bytes, packed: Bytes) -> None:
    """Pack groups [lanes, 16] under ``step`` = scale * t; true division, as the oracle."""
    for lane in range(groups.shape[0]):
        row, row_codes, row_step = groups[lane], codes[lane], step[lane]
        for i in range(GROUP_SIZE):
            pattern = np.uint32(row[i])
            y = _as_float((pattern & np.uint32(0x7FFF)) << np.uint32(16)) / row_step
            rounded = _round_e2m1(y)
            # 1, 1.5, 2, 3, 4, 6 have codes 2..7: their leading bits less a constant.
            upper = np.int32(_as_bits(rounded) >> np.uint32(22)) - np.int32(252)
            lower = np.int32(rounded * _TWO)
            code = upper if rounded >= _ONE else lower
            sign = np.int32(pattern >> np.uint32(12)) & np.int32(8)
            row_codes[i] = np.uint8(code | (sign if y > 0 else np.int32(0)))
        row_packed = packed[lane]
        for i in range(GROUP_SIZE // 2):
            row_packed[i] = row_codes[2 * i] | (row_codes[2 * i + 1] << np.uint8(4))


@njit(cache=True, nogil=True, error_model="numpy")
def _load_lanes(
    groups: Words, inverse_t: np.float32, x: Floats, amax: Floats, energy: Floats
) -> None:
    """Magnitudes of some groups in units of t, one group a lane."""
    lanes = groups.shape[0]
    for lane in range(lanes):
        for element in range(GROUP_SIZE):
            magnitude = np.uint32(groups[lane, element] & np.uint16(0x7FFF))
            x[element, lane] = _as_float(magnitude << np.uint32(16)) * inverse_t
    for lane in range(lanes):
        amax[lane] = np.float32(0)
        energy[lane] = np.float32(0)
    for element in range(GROUP_SIZE):
        row = x[element]
        for lane in range(lanes):
            value = row[lane]
            amax[lane] = value if value > amax[lane] else amax[lane]
            energy[lane] += value * value


@njit(cache=True, nogil=True, error_model="numpy")
def _improve(error: Floats, code: Ints, best_error: Floats, best_code: Ints, lanes: int) -> None:
    for lane in range(lanes):
        better = error[lane] < best_error[lane]
        best_code[lane] = code[lane] if better else best_code[lane]
        best_error[lane] = error[lane] if better else best_error[lane]


@njit(cache=True, nogil=True, error_model="numpy")
def _search_exact(
    x: Floats,
    amax: Floats,
    code: Ints,
    scale: Floats,
    inverse: Floats,
    error: Floats,
    best_error: Floats,
    best_code: Ints,
    lanes: int,
) -> None:
    """Descend from the first code until the lower bound closes in every lane."""
    for lane in range(lanes):
        best_code[lane] = _first_code(amax[lane])
        code[lane] = best_code[lane]
    _lane_errors(x, code, scale, inverse, best_error, lanes)
    while True:
        open_lanes = np.int32(0)
        for lane in range(lanes):
            lower = code[lane] - np.int32(1)
            beyond = amax[lane] - _SIX * _scale_value(lower)
            beyond = beyond if beyond > 0 else np.float32(0)
            open_lanes += np.int32((lower >= 8) & (beyond * beyond < best_error[lane]))
            code[lane] = lower if lower > 8 else np.int32(8)
        if open_lanes == 0:
            return
        _lane_errors(x, code, scale, inverse, error, lanes)
        _improve(error, code, best_error, best_code, lanes)


@njit(cache=True, nogil=True, error_model="numpy")
def _quantize_groups(
    groups: Words,
    t: np.float32,
    rule: int,
    packed: Bytes,
    scales: Bytes,
    errors: Floats,
    max_errors: Floats,
    energies: Floats,
    shifts: NDArray[np.int64],
) -> None:
    x = np.empty((GROUP_SIZE, _LANES), np.float32)  # the lanes of element 0, then of 1, ...
    # One allocation each: rows of one array are taken to overlap, which costs the vector code.
    amax, energy = np.empty(_LANES, np.float32), np.empty(_LANES, np.float32)
    scale, inverse = np.empty(_LANES, np.float32), np.empty(_LANES, np.float32)
    error, best_error = np.empty(_LANES, np.float32), np.empty(_LANES, np.float32)
    max_error = np.empty(_LANES, np.float32)
    code, best_code = np.empty(_LANES, np.int32), np.empty(_LANES, np.int32)
    max_code = np.empty(_LANES, np.int32)
    codes = np.empty((_LANES, GROUP_SIZE), np.uint8)
    for first in range(0, groups.shape[0], _LANES):
        lanes = min(_LANES, groups.shape[0] - first)
        block = groups[first : first + lanes]
        _load_lanes(block, _ONE / t, x, amax, energy)
        for lane in range(lanes):
            best_code[lane] = _nearest_code(amax[lane] / _SIX)
            max_code[lane] = best_code[lane]
        _lane_errors(x, best_code, scale, inverse, max_error, lanes)
        best_error[:] = max_error
        if rule == 1:
            for lane in range(lanes):
                code[lane] = _nearest_code(amax[lane] / np.float32(4))
            _lane_errors(x, code, scale, inverse, error, lanes)
            _improve(error, code, best_error, best_code, lanes)
        elif rule == 2:
            _search_exact(x, amax, code, scale, inverse, error, best_error, best_code, lanes)
        for lane in range(lanes):
            group = first + lane
            chosen = np.int32(0x20) if amax[lane] == 0 else best_code[lane]
            shift = np.int32(0) if amax[lane] == 0 else chosen - max_code[lane]
            shifts[min(max(shift, -MAX_SHIFT), MAX_SHIFT) + MAX_SHIFT] += 1
            scales[group] = chosen
            errors[group] = best_error[lane]
            max_errors[group] = max_error[lane]
            energies[group] = energy[lane]
            scale[lane] = _scale_value(chosen) * t
        _encode_lanes(block, scale, codes, packed[first : first + lanes])

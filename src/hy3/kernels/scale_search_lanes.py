"""The scale search as a numba kernel: sixteen groups side by side, one in each lane.

The bytes are those of ``hy3.nvfp4.scales`` (docs/formats.md, "Arithmetic of the scale search"). The
lanes descend together until none is open; a lane that is done goes on without effect.

- ``x * (1 / v)`` may be off by an ulp or two from x / v: x / v lies on a midpoint of two E2M1
  values, where both sides are equally far, or a relative 2^-8 from it. Only the final codes care
  for the even side.
- Rule max costs nothing extra: the descent passes through its code.
- ``h`` is a tuple of sixteen weight vectors, or ``None``, and then numba drops what needs them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hy3.kernels.lanes import (
    LANES,
    any_lane,
    bits_of,
    each,
    fill,
    float_of,
    fold,
    load_halves,
    load_rows,
    maximum,
    minimum,
    select,
    store,
    store_pairs,
    subtract_product,
)
from hy3.nvfp4.codec import GROUP_SIZE
from hy3.nvfp4.scales import (
    LOWEST_START,
    MAX_CODE,
    MAX_SHIFT,
    MAX_WEIGHT,
    MIN_CODE,
    RULES,
    ZERO_GROUP_CODE,
)

Floats, Words, Bytes = NDArray[np.float32], NDArray[np.uint16], NDArray[np.uint8]
# The annotations below: a vector of 16 floats, ints or truth values, or a tuple of vectors.
FloatLanes = IntLanes = MaskLanes = Vectors = Any

_FOUR_OVER_SIX, _EXACT = RULES.index("four-over-six"), RULES.index("exact")
_ZERO, _ONE, _INFINITY = np.float32(0), np.float32(1), np.float32(np.inf)
_MAGNITUDE = 0x7FFF0000
_EXPONENT = 0x7F800000
# Added to the bits of 2^e it gives 1.5 * 2^(e + 22): adding and subtracting that number rounds to
# steps of 2^(e - 1), a tie to even.
_ROUNDER = (22 << 23) | 0x400000
# fp32 bits >> 20 of a normal E4M3 number are its code plus this.
_CODE_OFFSET = (127 - 7) << 3
_HALF_LEAST = np.float32(2.0**-75)


@njit(forceinline=True)
def _round_e2m1(y: FloatLanes) -> FloatLanes:
    """Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6 for y >= 0, a tie to the even code."""
    y = minimum(y, fill(np.float32(6)))
    rounder = float_of((bits_of(maximum(y, fill(_ONE))) & _EXPONENT) + _ROUNDER)
    return (y + rounder) - rounder


@njit(forceinline=True)
def _scale_value(code: IntLanes) -> FloatLanes:
    return float_of((code + _CODE_OFFSET) << 20)


@njit(forceinline=True)
def _clamp(code: IntLanes, least: int) -> IntLanes:
    return minimum(maximum(code, fill(np.int32(least))), fill(np.int32(MAX_CODE)))


@njit(forceinline=True)
def _nearest_code(scale: FloatLanes) -> IntLanes:
    """E4M3 code nearest to a scale >= 0, a tie to even, within 8..126."""
    bits = bits_of(scale)
    return _clamp(((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - _CODE_OFFSET, MIN_CODE)


@njit(forceinline=True)
def _first_code(amax: FloatLanes) -> IntLanes:
    """The larger of 15 and the smallest code whose value is >= amax / 3.5; at most 126."""
    return _clamp(((bits_of(amax / 3.5) + 0xFFFFF) >> 20) - _CODE_OFFSET, LOWEST_START)


@njit(forceinline=True)
def _magnitude(half: IntLanes) -> FloatLanes:
    return float_of(half & _MAGNITUDE)


@njit(forceinline=True)
def _scaled(half: IntLanes, inverse_t: np.float32) -> FloatLanes:
    return _magnitude(half) * inverse_t


@njit(forceinline=True)
def _add_square(total: FloatLanes, d: FloatLanes, h: FloatLanes | None) -> FloatLanes:
    square = d * d
    return total + (square if h is None else square * h)


@njit(forceinline=True)
def _add_error(
    total: FloatLanes, x: FloatLanes, h: FloatLanes | None, scale: FloatLanes, inverse: FloatLanes
) -> FloatLanes:
    return _add_square(total, subtract_product(x, _round_e2m1(x * inverse), scale), h)


@njit(forceinline=True)
def _add_beyond(total: FloatLanes, x: FloatLanes, h: FloatLanes, top: FloatLanes) -> FloatLanes:
    return _add_square(total, maximum(x - top, fill(_ZERO)), h)


@njit(forceinline=True)
def _add_two_errors(
    totals: Vectors,
    x: FloatLanes,
    h: FloatLanes | None,
    scale: FloatLanes,
    inverse: FloatLanes,
    other_scale: FloatLanes,
    other_inverse: FloatLanes,
) -> Vectors:
    return (
        _add_error(totals[0], x, h, scale, inverse),
        _add_error(totals[1], x, h, other_scale, other_inverse),
    )


@njit(forceinline=True)
def _group_error(x: Vectors, code: IntLanes, h: Vectors | None) -> FloatLanes:
    """Squared error of each lane's group under its scale code."""
    scale = _scale_value(code)
    return fold(_add_error, fill(_ZERO), (x, h), (scale, fill(_ONE) / scale))


@njit(forceinline=True)
def _two_errors(x: Vectors, code: IntLanes, other: IntLanes, h: Vectors | None) -> Vectors:
    """Those of two codes: a sum mostly waits for its last addition, so two take little more."""
    one, two = _scale_value(code), _scale_value(other)
    constants = (one, fill(_ONE) / one, two, fill(_ONE) / two)
    return fold(_add_two_errors, (fill(_ZERO), fill(_ZERO)), (x, h), constants)


@njit(forceinline=True)
def _open_lanes(
    x: Vectors, amax: FloatLanes, h: Vectors | None, code: IntLanes, best: FloatLanes
) -> MaskLanes:
    """Where ``code`` or a smaller one may have an error below ``best``.

    The bound of one element costs little. Under weights it is no bound, so the sum over the group
    decides; it is zero, and not needed, as long as one lane has no element beyond its range.
    """
    top = _scale_value(code) * 6.0
    beyond = maximum(amax - top, fill(_ZERO))
    allowed = code >= MIN_CODE
    if h is None:
        return allowed & (beyond * beyond < best)
    within = allowed & (beyond == _ZERO) & (best > _ZERO)
    if any_lane(within):
        return within
    return allowed & (fold(_add_beyond, fill(_ZERO), (x, h), (top,)) < best)


@njit(forceinline=True)
def _search_exact(
    x: Vectors, amax: FloatLanes, h: Vectors | None, max_code: IntLanes
) -> tuple[IntLanes, FloatLanes, FloatLanes]:
    """Best code, its error and that of ``max_code``.

    That code is never above the first one, but in a group of zeros, whose error is zero anyhow.
    """
    code = _first_code(amax)
    best_code = code
    best_error = fill(_INFINITY)
    max_error = fill(_ZERO)
    while True:
        lower = maximum(code - 1, fill(np.int32(MIN_CODE)))
        error, lower_error = _two_errors(x, code, lower, h)
        max_error = select(code == max_code, error, max_error)
        max_error = select(lower == max_code, lower_error, max_error)
        better = error < best_error
        best_code = select(better, code, best_code)
        best_error = select(better, error, best_error)
        better = lower_error < best_error
        best_code = select(better, lower, best_code)
        best_error = select(better, lower_error, best_error)
        code = code - 2
        is_open = _open_lanes(x, amax, h, code, best_error) | (code >= max_code)
        if not any_lane(is_open):
            return best_code, best_error, max_error
        code = maximum(code, fill(np.int32(MIN_CODE)))


@njit(forceinline=True)
def _choose(
    x: Vectors, amax: FloatLanes, h: Vectors | None, max_code: IntLanes, rule: int
) -> tuple[IntLanes, FloatLanes, FloatLanes]:
    """Code of each lane under the rule, its error, and the error under rule max."""
    if rule == _EXACT:
        return _search_exact(x, amax, h, max_code)
    if rule == _FOUR_OVER_SIX:
        four = _nearest_code(amax * 0.25)
        max_error, error = _two_errors(x, max_code, four, h)
        better = error < max_error
        return select(better, four, max_code), select(better, error, max_error), max_error
    max_error = _group_error(x, max_code, h)
    return max_code, max_error, max_error


@njit(forceinline=True)
def _add_nibble(
    packed: IntLanes, half: IntLanes, x: FloatLanes, inverse: FloatLanes, least: FloatLanes
) -> IntLanes:
    """Shift the E2M1 code of a weight in from the top.

    A negative weight keeps its sign where weight / (scale * t) does not underflow to zero in fp32,
    that is above ``least``.
    """
    # To 16 bits: what should be a tie becomes one, and nothing else comes near one.
    snapped = float_of((bits_of(x * inverse) + 0x80) & -0x100)
    rounded = bits_of(_round_e2m1(snapped))
    # 1, 1.5, 2, 3, 4, 6 have codes 2..7: their leading bits less a constant; 0.5 has code 1.
    small = select(rounded > 0, fill(np.int32(1)), fill(np.int32(0)))
    code = maximum((rounded >> 22) - 252, small)
    sign = select(_magnitude(half) > least, (half >> 28) & 8, fill(np.int32(0)))
    return (packed >> 4) | ((code | sign) << 28)


@njit(forceinline=True)
def _pack(halves: Vectors, x: Vectors, code: IntLanes, t: np.float32) -> tuple[IntLanes, IntLanes]:
    """The 16 E2M1 codes of each lane's group: of elements 0..7 and 8..15, the first lowest."""
    scale = _scale_value(code)
    # 2^-150, half the least fp32 number, rounds to zero; in two steps because it is none itself.
    constants = (fill(_ONE) / scale, ((scale * t) * _HALF_LEAST) * _HALF_LEAST)
    nothing = fill(np.int32(0))
    low = fold(_add_nibble, nothing, (halves[:8], x[:8]), constants)
    return low, fold(_add_nibble, nothing, (halves[8:], x[8:]), constants)


@njit(forceinline=True)
def _larger(total: FloatLanes, x: FloatLanes) -> FloatLanes:
    return maximum(total, x)


@njit(forceinline=True)
def _unless_weightless(code: IntLanes, max_code: IntLanes, h: Vectors | None) -> IntLanes:
    if h is None:
        return code
    return select(fold(_larger, fill(_ZERO), (h,), ()) > _ZERO, code, max_code)


@njit(forceinline=True)
def _count(counts: NDArray[np.int64], shifts: NDArray[np.int32]) -> None:
    """Add each lane's shift to a histogram of its own, so that none waits for another."""
    for lane in range(LANES):
        shift = min(max(shifts[lane], -MAX_SHIFT), MAX_SHIFT)
        counts[shift + MAX_SHIFT, lane] += 1


def weight_table(column_weights: Floats) -> Floats:
    """fp32 [16 * (in / 16 + 16)]: the weights element by element, with groups past the row's end.

    A block begins at any group of a row; what follows the last group are the first ones again.
    The weights must be finite, not negative and at most 2^100, so that no sum overflows.
    """
    assert column_weights.dtype == np.float32
    assert bool(((column_weights >= 0) & (column_weights <= MAX_WEIGHT)).all())
    by_element = column_weights.reshape(-1, GROUP_SIZE).T  # [16, in / 16]
    groups = np.arange(by_element.shape[1] + LANES) % by_element.shape[1]
    return np.ascontiguousarray(by_element[:, groups]).reshape(-1)


@njit(cache=True, nogil=True, error_model="numpy")
def quantize_blocks(
    patterns: Words,  # BF16 of whole blocks of 16 groups
    t: np.float32,
    rule: int,
    table: Floats | None,  # of weight_table
    row_groups: int,
    first: int,  # group where the results begin
    packed: NDArray[np.uint32],
    scales: Bytes,
    errors: Floats,
    max_errors: Floats,
    energies: Floats,
    counts: NDArray[np.int64],  # [33, 16], added to
) -> None:
    """Quantize the groups of ``patterns`` under a rule of RULES, given by its index."""
    shifts = np.empty(LANES, np.int32)
    for block in range(patterns.size // (LANES * GROUP_SIZE)):
        group = first + block * LANES
        halves = load_halves(patterns, block * LANES * GROUP_SIZE)
        x = each(_scaled, halves, _ONE / t)
        h = load_rows(table, group % row_groups, row_groups + LANES)
        amax = fold(_larger, fill(_ZERO), (x,), ())
        zero_code = fill(np.int32(ZERO_GROUP_CODE))
        max_code = select(amax == _ZERO, zero_code, _nearest_code(amax / 6.0))
        code, error, max_error = _choose(x, amax, h, max_code, rule)
        code = select(amax == _ZERO, zero_code, _unless_weightless(code, max_code, h))
        low, high = _pack(halves, x, code, t)
        store_pairs(packed, group * 2, low, high)
        store(scales, group, code)
        store(errors, group, error)
        store(max_errors, group, max_error)
        store(energies, group, fold(_add_square, fill(_ZERO), (x, h), ()))
        store(shifts, 0, code - max_code)
        _count(counts, shifts)

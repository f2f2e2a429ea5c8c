"""The scale rules ``max``, ``four-over-six`` and ``exact``: which E4M3 code each group gets.

A weight is restored as ``value(code) * scale * t`` with one tensor scale t, a power of two. So
``x = |w| / t`` is exact, and so is its difference d from a code's product: that has 6 significant
bits, x has 8. What is left to round is written down in docs/formats.md.

The 16 squares of a group are added in fp32 one after the other, element 0 first (``sum_group``),
each rounded before. Errors here are in units of t squared. A weight h >= 0 for each column makes
the term of an element ``(d * d) * h``, each product rounded.

This is the readable oracle; ``hy3.kernels.scale_search`` has the fast form of the same bytes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hy3.nvfp4.codec import E2M1_VALUES, E4M3_VALUES, GROUP_SIZE, encode_e4m3

RULES = ("max", "four-over-six", "exact")

# Marlin flushes subnormal scales to zero, hence the lower end.
MIN_CODE = 8
MAX_CODE = 126
ZERO_GROUP_CODE = 0x20
# From here down v/2 is not a normal E4M3 number, so the search never starts lower.
LOWEST_START = 15
MAX_WEIGHT = 2.0**100
MAX_SHIFT = 16


def tensor_scale(amax: float) -> float:
    """t: the smallest power of two >= amax / 1568, its exponent within -126..126; 1.0 for 0.

    1568 = 3.5 * 448 leaves the largest group the room to scale up to amax / 3.5.
    """
    assert math.isfinite(amax) and amax >= 0
    if amax == 0:
        return 1.0
    mantissa, exponent = math.frexp(amax)  # amax = mantissa * 2**exponent, 0.5 <= mantissa < 1
    # 1568 = 0.765625 * 2**11
    power = exponent - 11 if mantissa <= 0.765625 else exponent - 10
    return math.ldexp(1.0, min(max(power, -126), 126))


def scaled_groups(weight: Tensor, t: float) -> Tensor:
    """[out, in] -> fp32 magnitudes in units of t [out, in / 16, 16]."""
    assert weight.shape[-1] % GROUP_SIZE == 0
    return (weight.float() * (1.0 / t)).abs().unflatten(-1, (-1, GROUP_SIZE))


def sum_group(squares: Tensor) -> Tensor:
    """Sum over the last dimension (16) in the one fixed order. [..., 16] -> [...]."""
    total = squares[..., 0]
    for element in range(1, GROUP_SIZE):
        total = total + squares[..., element]
    return total


def group_weights(column_weights: Tensor | None) -> Tensor | None:
    """fp32 column weights [in] -> [in / 16, 16]; none stays none.

    They must be finite, not negative and at most 2^100, so that no sum overflows.
    """
    if column_weights is None:
        return None
    assert column_weights.dtype == torch.float32
    assert bool(((column_weights >= 0) & (column_weights <= MAX_WEIGHT)).all())
    return column_weights.unflatten(-1, (-1, GROUP_SIZE))


def group_errors(x: Tensor, codes: Tensor, h: Tensor | None = None) -> Tensor:
    """Squared error of each group under its scale code, each value rounded to the nearest.

    x: magnitudes in units of t [..., 16]; codes: E4M3 patterns [...]; h: weights of the squares,
    broadcast to x -> fp32 [...].
    """
    scale = E4M3_VALUES.to(x.device)[codes.long()].unsqueeze(-1)
    values = E2M1_VALUES.to(x.device)
    # On a tie both neighbours are equally far, so its side does not matter.
    index = torch.bucketize(x / scale, (values[1:] + values[:-1]) / 2)
    return weighted_sum(x - scale * values[index], h)


def weighted_sum(differences: Tensor, h: Tensor | None) -> Tensor:
    """Sum of the squares [..., 16], each times its weight, in the fixed order -> [...]."""
    squares = differences.square()
    return sum_group(squares if h is None else squares * h)


def code_shifts(codes: Tensor, max_codes: Tensor) -> Tensor:
    """Groups by code less the code of rule max, -16 to 16, the ends included: int64 [33]."""
    shifts = (codes.long() - max_codes.long()).clamp(-MAX_SHIFT, MAX_SHIFT)
    return torch.bincount(shifts.flatten() + MAX_SHIFT, minlength=2 * MAX_SHIFT + 1)


def search_scales(
    weight: Tensor, t: float, rule: str, column_weights: Tensor | None = None
) -> Tensor:
    """E4M3 codes of the groups of ``weight`` [out, in] under ``rule``: uint8 [out, in / 16].

    ``column_weights``: fp32 [in], the weight of each column's squares in the error that
    four-over-six and exact lower. A group of zeros gets 0x20; one whose weights are all zero has
    no error under any code and gets that of rule max.
    """
    x, h = scaled_groups(weight, t), group_weights(column_weights)
    if rule == "max":
        codes = _max(x)
    else:
        codes = _four_over_six(x, h) if rule == "four-over-six" else _exact(x, h)
        if h is not None:
            codes = torch.where(h.amax(-1) == 0, _max(x), codes)
    return torch.where(x.amax(-1) == 0, ZERO_GROUP_CODE, codes).to(torch.uint8)


def _nearest_code(scale: Tensor) -> Tensor:
    return encode_e4m3(scale).long().clamp(MIN_CODE, MAX_CODE)


def _max(x: Tensor) -> Tensor:
    return _nearest_code(x.amax(-1) / 6)


def _four_over_six(x: Tensor, h: Tensor | None) -> Tensor:
    six, four = _nearest_code(x.amax(-1) / 6), _nearest_code(x.amax(-1) / 4)
    return torch.where(group_errors(x, four, h) < group_errors(x, six, h), four, six)


def _exact(x: Tensor, h: Tensor | None) -> Tensor:
    """Least error among codes 8..126, equal errors to the larger code.

    Above the start nothing can win: with every x <= 3.5 v the values of v are among those of
    v / 2. Below, no value exceeds 6 v, so the sum over the larger x of h (x - 6 v)^2 bounds the
    error from beneath; it grows as v falls, and the search ends when it reaches the best error so
    far. Both hold for the rounded fp32 sums too, term by term, since rounding keeps an order.
    """
    values = E4M3_VALUES.to(x.device)
    # The smallest code with 3.5 v >= amax.
    first = torch.searchsorted(values * 3.5, x.amax(-1))
    best_code = code = first.clamp(LOWEST_START, MAX_CODE)
    best_error = group_errors(x, code, h)
    for _ in range(MAX_CODE - MIN_CODE):
        code = (code - 1).clamp(min=MIN_CODE)
        beyond = (x - 6 * values[code].unsqueeze(-1)).clamp(min=0)
        if not (weighted_sum(beyond, h) < best_error).any():
            break
        error = group_errors(x, code, h)
        better = error < best_error
        best_code = torch.where(better, code, best_code)
        best_error = torch.where(better, error, best_error)
    return best_code

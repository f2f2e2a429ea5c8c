"""The scale rules ``max``, ``four-over-six`` and ``exact``: which E4M3 code each group gets.

A weight is restored as ``value(code) * scale * t`` with one tensor scale t, a power of two. So
``x = |w| / t`` is exact, and so is every square of a difference that a rule weighs (a code's
product has 6 significant bits, x has 8): an error depends on nothing but the order of its sum.

That order is fixed: the 16 squares of a group are added in fp32 one after the other, element 0
first (``sum_group``). Errors here are in units of t squared.

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


def group_errors(x: Tensor, codes: Tensor) -> Tensor:
    """Squared error of each group under its scale code, each value rounded to the nearest.

    x: magnitudes in units of t [..., 16]; codes: E4M3 patterns [...] -> fp32 [...].
    """
    scale = E4M3_VALUES.to(x.device)[codes.long()].unsqueeze(-1)
    values = E2M1_VALUES.to(x.device)
    # On a tie both neighbours are equally far, so its side does not matter.
    index = torch.bucketize(x / scale, (values[1:] + values[:-1]) / 2)
    return sum_group((x - scale * values[index]).square())


def search_scales(weight: Tensor, t: float, rule: str) -> Tensor:
    """E4M3 codes of the groups of ``weight`` [out, in] under ``rule``: uint8 [out, in / 16]."""
    x = scaled_groups(weight, t)
    codes = {"max": _max, "four-over-six": _four_over_six, "exact": _exact}[rule](x)
    return torch.where(x.amax(-1) == 0, ZERO_GROUP_CODE, codes).to(torch.uint8)


def _nearest_code(scale: Tensor) -> Tensor:
    return encode_e4m3(scale).long().clamp(MIN_CODE, MAX_CODE)


def _max(x: Tensor) -> Tensor:
    return _nearest_code(x.amax(-1) / 6)


def _four_over_six(x: Tensor) -> Tensor:
    six, four = _nearest_code(x.amax(-1) / 6), _nearest_code(x.amax(-1) / 4)
    return torch.where(group_errors(x, four) < group_errors(x, six), four, six)


def _exact(x: Tensor) -> Tensor:
    """Least error among codes 8..126, equal errors to the larger code.

    Above the start nothing can win: with every x <= 3.5 v the values of v are among those of
    v / 2. Below, no value exceeds 6 v, so (amax - 6 v)^2 bounds the error from beneath; it grows
    as v falls, and the search ends when it reaches the best error so far.
    """
    amax = x.amax(-1)
    values = E4M3_VALUES.to(x.device)
    first = torch.searchsorted(values * 3.5, amax)  # smallest code with 3.5 v >= amax
    best_code = code = first.clamp(LOWEST_START, MAX_CODE)
    best_error = group_errors(x, code)
    for _ in range(MAX_CODE - MIN_CODE):
        code = (code - 1).clamp(min=MIN_CODE)
        bound = (amax - 6 * values[code]).clamp(min=0).square()
        if not (bound < best_error).any():
            break
        error = group_errors(x, code)
        better = error < best_error
        best_code = torch.where(better, code, best_code)
        best_error = torch.where(better, error, best_error)
    return best_code

"""The scale search as a Triton kernel: one group of 16 weights a lane, all of it in registers.

The bytes and errors are those of ``hy3.nvfp4.scales``. What that needs on a GPU:

- No contraction: the kernel is launched with ``enable_fp_fusion=False``. Each ``tl.fma`` here has
  an exact product, so it rounds once, as the separate operations do.
- The 16 squares are added by one lane, element 0 first.
- ``1 / scale`` may be off by an ulp or two: x / v lies on a midpoint of two E2M1 values, where both
  sides are equally far, or a relative 2^-8 from it. Only the final codes care for the even side.

Imported only where a CUDA tensor is quantized; CPU installs have no Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hy3.nvfp4.codec import GROUP_SIZE
from hy3.nvfp4.scales import LOWEST_START, MAX_CODE, MIN_CODE, RULES, ZERO_GROUP_CODE

# Measured by benchmarks/scale_search_gpu.py.
GROUPS_PER_PROGRAM = 64
WARPS = 1

_LOWEST_START = tl.constexpr(LOWEST_START)
_MIN_CODE = tl.constexpr(MIN_CODE)
_MAX_CODE = tl.constexpr(MAX_CODE)
_ZERO_GROUP_CODE = tl.constexpr(ZERO_GROUP_CODE)
_FOUR_OVER_SIX = tl.constexpr(RULES.index("four-over-six"))
_EXACT = tl.constexpr(RULES.index("exact"))
# fp32 bits >> 20 of a normal E4M3 number are its code plus this.
_CODE_OFFSET = tl.constexpr((127 - 7) << 3)


@triton.jit
def _round_e2m1(y: tl.tensor) -> tl.tensor:
    """Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6 for y >= 0, a tie to the even code."""
    y = tl.minimum(y, 6.0)
    # 2^e <= max(y, 1); adding and subtracting its 2^22-fold rounds to steps of 2^(e - 1).
    exponent = tl.maximum(y, 1.0).to(tl.int32, bitcast=True) & 0x7F800000
    power = exponent.to(tl.float32, bitcast=True)
    return tl.fma(power, -4194304.0, tl.fma(power, 4194304.0, y))


@triton.jit
def _scale_value(code: tl.tensor) -> tl.tensor:
    return ((code + _CODE_OFFSET) << 20).to(tl.float32, bitcast=True)


@triton.jit
def _nearest_code(scale: tl.tensor) -> tl.tensor:
    """E4M3 code nearest to a scale >= 0, a tie to even, within 8..126."""
    bits = scale.to(tl.int32, bitcast=True)
    code = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - _CODE_OFFSET
    return tl.minimum(tl.maximum(code, _MIN_CODE), _MAX_CODE)


@triton.jit
def _first_code(amax: tl.tensor) -> tl.tensor:
    """The larger of 15 and the smallest code whose value is >= amax / 3.5; at most 126."""
    bits = tl.div_rn(amax, 3.5).to(tl.int32, bitcast=True)
    code = ((bits + 0xFFFFF) >> 20) - _CODE_OFFSET
    return tl.minimum(tl.maximum(code, _LOWEST_START), _MAX_CODE)


@triton.jit
def _magnitude(half: tl.tensor) -> tl.tensor:
    """fp32 |w| of the BF16 pattern in the upper half of a 32-bit word, whatever the lower."""
    return (half & 0x7FFF0000).to(tl.float32, bitcast=True)


@triton.jit
def _group_error(x: tl.tuple, code: tl.tensor) -> tl.tensor:
    """Squared error of each lane's group x (16 tensors [lanes]) under its scale code."""
    scale = _scale_value(code)
    inverse = 1.0 / scale
    total = tl.zeros_like(scale)
    for i in tl.static_range(16):
        difference = tl.fma(_round_e2m1(x[i] * inverse), -scale, x[i])
        total += difference * difference
    return total


@triton.jit
def _search_exact(x: tl.tuple, amax: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Descend from the first code until the lower bound closes in every lane."""
    code = _first_code(amax)
    best_code = code
    best_error = _group_error(x, code)
    is_open = 1
    while is_open > 0:
        lower = code - 1
        code = tl.maximum(lower, _MIN_CODE)
        beyond = tl.maximum(amax - 6.0 * _scale_value(code), 0.0)
        lane_open = (lower >= _MIN_CODE) & (beyond * beyond < best_error)
        is_open = tl.max(lane_open.to(tl.int32), 0)
        if is_open > 0:
            error = _group_error(x, code)
            better = error < best_error
            best_code = tl.where(better, code, best_code)
            best_error = tl.where(better, error, best_error)
    return best_code, best_error


@triton.jit
def _nibble(half: tl.tensor, x: tl.tensor, inverse: tl.tensor, least: tl.tensor) -> tl.tensor:
    """E2M1 code of the BF16 weight in the upper half of a word, x its magnitude in units of t.

    A negative weight keeps its sign where weight / (scale * t) does not underflow to zero in fp32,
    that is above ``least``.
    """
    # To 16 bits: what should be a tie becomes one, and nothing else comes near one.
    snapped = ((x * inverse).to(tl.int32, bitcast=True) + 0x80) & ~0xFF
    rounded = _round_e2m1(snapped.to(tl.float32, bitcast=True))
    # 1, 1.5, 2, 3, 4, 6 have codes 2..7: their leading bits less a constant; 0.5 has code 1.
    upper = (rounded.to(tl.int32, bitcast=True) >> 22) - 252
    code = tl.maximum(upper, (rounded > 0).to(tl.int32))
    return code | tl.where(_magnitude(half) > least, (half >> 28) & 8, 0)


@triton.jit
def _pack(halves: tl.tuple, x: tl.tuple, code: tl.tensor, t: tl.tensor) -> tl.tensor:
    """The 16 E2M1 codes of each lane's group in one int64, column 0 lowest."""
    scale = _scale_value(code)
    inverse = 1.0 / scale
    # 2^-150, half the least fp32 number, rounds to zero; in two steps because it is none itself.
    least = (scale * t) * 2.0**-75 * 2.0**-75
    low = tl.zeros_like(code)
    high = tl.zeros_like(code)
    for i in tl.static_range(8):
        low |= _nibble(halves[i], x[i], inverse, least) << (4 * i)
        high |= _nibble(halves[i + 8], x[i + 8], inverse, least) << (4 * i)
    return (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def _quantize_groups(
    words: tl.tensor,  # int64 [groups, 4], BF16 patterns
    packed: tl.tensor,  # int64 [groups]
    scales: tl.tensor,  # uint8 [groups]
    errors: tl.tensor,  # fp32 [groups], as the two below
    max_errors: tl.tensor,
    energies: tl.tensor,
    groups: tl.tensor,
    t: tl.tensor,
    inverse_t: tl.tensor,
    RULE: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    group = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    inside = group < groups
    halves = ()
    for i in tl.static_range(4):
        word = tl.load(words + group * 4 + i, mask=inside, other=0)
        low, high = word.to(tl.int32), (word >> 32).to(tl.int32)
        halves += (low << 16, low, high << 16, high)
    x = ()
    amax = tl.zeros([LANES], tl.float32)
    energy = tl.zeros([LANES], tl.float32)
    for i in tl.static_range(16):
        value = _magnitude(halves[i]) * inverse_t
        x += (value,)
        amax = tl.maximum(amax, value)
        energy += value * value

    code = _nearest_code(tl.div_rn(amax, 6.0))
    error = _group_error(x, code)
    tl.store(max_errors + group, error, mask=inside)
    if RULE == _FOUR_OVER_SIX:
        four = _nearest_code(amax * 0.25)
        four_error = _group_error(x, four)
        code = tl.where(four_error < error, four, code)
        error = tl.minimum(four_error, error)
    elif RULE == _EXACT:
        code, error = _search_exact(x, amax)
    code = tl.where(amax == 0, _ZERO_GROUP_CODE, code)

    tl.store(packed + group, _pack(halves, x, code, t), mask=inside)
    tl.store(scales + group, code.to(tl.uint8), mask=inside)
    tl.store(errors + group, error, mask=inside)
    tl.store(energies + group, energy, mask=inside)


def quantize_groups(
    weight: Tensor,
    t: float,
    rule: str,
    lanes: int = GROUPS_PER_PROGRAM,
    warps: int = WARPS,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Packed codes, scales, errors, errors under max and energies of BF16 ``weight`` [out, in]."""
    rows, columns = weight.shape
    grid = (rows, columns // GROUP_SIZE)
    words = weight.contiguous().view(torch.int64)
    packed = torch.empty((rows, columns // 16), dtype=torch.int64, device=weight.device)
    scales = torch.empty(grid, dtype=torch.uint8, device=weight.device)
    errors, max_errors, energies = torch.empty((3, *grid), device=weight.device)
    groups = scales.numel()
    _quantize_groups[(triton.cdiv(groups, lanes),)](
        words,
        packed,
        scales,
        errors,
        max_errors,
        energies,
        groups,
        t,
        1.0 / t,
        RULE=RULES.index(rule),
        LANES=lanes,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return packed.view(torch.uint8), scales, errors, max_errors, energies

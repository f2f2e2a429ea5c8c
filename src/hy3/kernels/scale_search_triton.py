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
from hy3.nvfp4.scales import LOWEST_START, MAX_CODE, MAX_SHIFT, MIN_CODE, RULES, ZERO_GROUP_CODE

# Measured by benchmarks/scale_search_gpu.py.
GROUPS_PER_PROGRAM = 32
WARPS = 1
SHIFTS_BLOCK = 4096
SHIFTS_BLOCKS = 16
SHIFTS_BINS = 64  # 33 and one for what lies outside, rounded up to a power of two

_LOWEST_START = tl.constexpr(LOWEST_START)
_MIN_CODE = tl.constexpr(MIN_CODE)
_MAX_CODE = tl.constexpr(MAX_CODE)
_ZERO_GROUP_CODE = tl.constexpr(ZERO_GROUP_CODE)
_FOUR_OVER_SIX = tl.constexpr(RULES.index("four-over-six"))
_EXACT = tl.constexpr(RULES.index("exact"))
# From the first code, where 3.5 scales reach amax, to where 6 no longer do: six codes or more.
_UNBOUNDED_STEPS = tl.constexpr(6)
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
def _weighted(square: tl.tensor, h: tl.tuple, i: tl.constexpr, WEIGHTED: tl.constexpr) -> tl.tensor:
    if WEIGHTED:
        square = square * h[i]
    return square


@triton.jit
def _group_error(x: tl.tuple, h: tl.tuple, code: tl.tensor, WEIGHTED: tl.constexpr) -> tl.tensor:
    """Squared error of each lane's group x (16 tensors [lanes]) under its scale code."""
    scale = _scale_value(code)
    inverse = 1.0 / scale
    total = tl.zeros_like(scale)
    for i in tl.static_range(16):
        difference = tl.fma(_round_e2m1(x[i] * inverse), -scale, x[i])
        total += _weighted(difference * difference, h, i, WEIGHTED)
    return total


@triton.jit
def _heaviest(h: tl.tuple) -> tl.tensor:
    largest = h[0]
    for i in tl.static_range(1, 16):
        largest = tl.maximum(largest, h[i])
    return largest


@triton.jit
def _lower_bound(
    x: tl.tuple, h: tl.tuple, amax: tl.tensor, code: tl.tensor, WEIGHTED: tl.constexpr
) -> tl.tensor:
    """What no code up to ``code`` can go below: the error of what lies beyond 6 scales.

    The largest element alone says enough, unless its weight may be small.
    """
    reach = 6.0 * _scale_value(code)
    beyond = tl.maximum(amax - reach, 0.0)
    bound = beyond * beyond
    if WEIGHTED:
        bound = tl.zeros_like(amax)
        for i in tl.static_range(16):
            beyond = tl.maximum(x[i] - reach, 0.0)
            bound += beyond * beyond * h[i]
    return bound


@triton.jit
def _search_exact(
    x: tl.tuple, h: tl.tuple, amax: tl.tensor, WEIGHTED: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Descend from the first code until the lower bound closes in every lane."""
    code = _first_code(amax)
    best_code = code
    best_error = _group_error(x, h, code, WEIGHTED)
    # So far down nothing is out of reach, the bound is 0 and no lane needs asking.
    for _ in range(_UNBOUNDED_STEPS):
        code = tl.maximum(code - 1, _MIN_CODE)
        error = _group_error(x, h, code, WEIGHTED)
        better = error < best_error
        best_code = tl.where(better, code, best_code)
        best_error = tl.where(better, error, best_error)
    is_open = 1
    while is_open > 0:
        lower = code - 1
        code = tl.maximum(lower, _MIN_CODE)
        lane_open = (lower >= _MIN_CODE) & (_lower_bound(x, h, amax, code, WEIGHTED) < best_error)
        is_open = tl.max(lane_open.to(tl.int32), 0)
        if is_open > 0:
            error = _group_error(x, h, code, WEIGHTED)
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
def _load_halves(words: tl.tensor, group: tl.tensor, inside: tl.tensor) -> tl.tuple:
    """16 tensors [lanes]: the group's BF16 patterns in the upper halves of 32-bit words."""
    halves = ()
    for i in tl.static_range(4):
        word = tl.load(words + group * 4 + i, mask=inside, other=0)
        low, high = word.to(tl.int32), (word >> 32).to(tl.int32)
        halves += (low << 16, low, high << 16, high)
    return halves


@triton.jit
def _load_column_weights(pairs: tl.tensor, group_in_row: tl.tensor) -> tl.tuple:
    """16 tensors [lanes]: the fp32 weights of the group's columns."""
    h = ()
    for i in tl.static_range(8):
        pair = tl.load(pairs + group_in_row * 8 + i)
        low, high = pair.to(tl.int32), (pair >> 32).to(tl.int32)
        h += (low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True))
    return h


@triton.jit
def _quantize_groups(
    words: tl.tensor,  # int64 [groups, 4], BF16 patterns
    column_weights: tl.tensor,  # int64 [groups_per_row, 8], pairs of fp32; read where WEIGHTED
    packed: tl.tensor,  # int64 [groups]
    scales: tl.tensor,  # uint8 [groups], as the next
    max_scales: tl.tensor,
    errors: tl.tensor,  # fp32 [groups], as the two below
    max_errors: tl.tensor,
    energies: tl.tensor,
    groups: tl.tensor,
    groups_per_row: tl.tensor,
    t: tl.tensor,
    inverse_t: tl.tensor,
    RULE: tl.constexpr,
    WEIGHTED: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    first = tl.program_id(0).to(tl.int64) * LANES
    group = first + tl.arange(0, LANES)
    inside = group < groups
    halves = _load_halves(words, group, inside)
    h = ()
    if WEIGHTED:
        first_in_row = (first % groups_per_row).to(tl.int32)
        group_in_row = (first_in_row + tl.arange(0, LANES)) % groups_per_row
        h = _load_column_weights(column_weights, group_in_row)
    x = ()
    amax = tl.zeros([LANES], tl.float32)
    energy = tl.zeros([LANES], tl.float32)
    for i in tl.static_range(16):
        value = _magnitude(halves[i]) * inverse_t
        x += (value,)
        amax = tl.maximum(amax, value)
        energy += _weighted(value * value, h, i, WEIGHTED)

    max_code = _nearest_code(tl.div_rn(amax, 6.0))
    max_error = _group_error(x, h, max_code, WEIGHTED)
    code, error = max_code, max_error
    if RULE == _FOUR_OVER_SIX:
        four = _nearest_code(amax * 0.25)
        four_error = _group_error(x, h, four, WEIGHTED)
        code = tl.where(four_error < error, four, code)
        error = tl.minimum(four_error, error)
    elif RULE == _EXACT:
        code, error = _search_exact(x, h, amax, WEIGHTED)
        if WEIGHTED:
            code = tl.where(_heaviest(h) == 0, max_code, code)
    code = tl.where(amax == 0, _ZERO_GROUP_CODE, code)
    max_code = tl.where(amax == 0, _ZERO_GROUP_CODE, max_code)

    tl.store(packed + group, _pack(halves, x, code, t), mask=inside)
    tl.store(scales + group, code.to(tl.uint8), mask=inside)
    tl.store(max_scales + group, max_code.to(tl.uint8), mask=inside)
    tl.store(errors + group, error, mask=inside)
    tl.store(max_errors + group, max_error, mask=inside)
    tl.store(energies + group, energy, mask=inside)


@triton.jit
def _count_shifts(
    scales: tl.tensor,  # uint8 [groups], as the next
    max_scales: tl.tensor,
    counts: tl.tensor,  # int64 [33], zero before
    groups: tl.tensor,
    MAX_SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BINS: tl.constexpr,
) -> None:
    """Add up what each program counts of its share of the groups."""
    total = tl.zeros([BINS], tl.int32)
    first = tl.program_id(0).to(tl.int64) * BLOCK * BLOCKS
    for block in range(BLOCKS):
        group = first + block * BLOCK + tl.arange(0, BLOCK)
        inside = group < groups
        code = tl.load(scales + group, mask=inside, other=0).to(tl.int32)
        max_code = tl.load(max_scales + group, mask=inside, other=0).to(tl.int32)
        shift = tl.minimum(tl.maximum(code - max_code, -MAX_SHIFT), MAX_SHIFT)
        # What lies outside is counted in a bin that nobody reads.
        total += tl.histogram(tl.where(inside, shift + MAX_SHIFT, BINS - 1), BINS)
    bins = tl.arange(0, BINS)
    tl.atomic_add(counts + bins, total.to(tl.int64), mask=bins <= 2 * MAX_SHIFT)


def quantize_groups(
    weight: Tensor,
    t: float,
    rule: str,
    column_weights: Tensor | None = None,
    lanes: int = GROUPS_PER_PROGRAM,
    warps: int = WARPS,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The fields of ``QuantizedTensor``, in its order, of a BF16 ``weight`` [out, in]."""
    rows, columns = weight.shape
    grid = (rows, columns // GROUP_SIZE)
    device = weight.device
    words = weight.contiguous().view(torch.int64)
    # A copy is aligned, whatever it was a view of.
    pairs = words if column_weights is None else column_weights.clone().view(torch.int64)
    packed = torch.empty((rows, columns // 16), dtype=torch.int64, device=device)
    scales, max_scales = torch.empty((2, *grid), dtype=torch.uint8, device=device)
    errors, max_errors, energies = torch.empty((3, *grid), device=device)
    groups = scales.numel()
    _quantize_groups[(triton.cdiv(groups, lanes),)](
        words,
        pairs,
        packed,
        scales,
        max_scales,
        errors,
        max_errors,
        energies,
        groups,
        grid[1],
        t,
        1.0 / t,
        RULE=RULES.index(rule),
        WEIGHTED=column_weights is not None,
        LANES=lanes,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    shifts = count_shifts(scales, max_scales)
    return packed.view(torch.uint8), scales, errors, max_errors, energies, shifts


def count_shifts(scales: Tensor, max_scales: Tensor) -> Tensor:
    """Groups by code less the code of rule max, -16 to 16, the ends included: int64 [33]."""
    counts = torch.zeros(2 * MAX_SHIFT + 1, dtype=torch.int64, device=scales.device)
    groups = scales.numel()
    _count_shifts[(triton.cdiv(groups, SHIFTS_BLOCK * SHIFTS_BLOCKS),)](
        scales,
        max_scales,
        counts,
        groups,
        MAX_SHIFT=MAX_SHIFT,
        BLOCK=SHIFTS_BLOCK,
        BLOCKS=SHIFTS_BLOCKS,
        BINS=SHIFTS_BINS,
    )
    return counts

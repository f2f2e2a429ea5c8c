"""Dot products of BF16 rows with fp32 rows, as vector instructions for any CPU.

Numba cannot be told to vectorise a reduction in one fixed order, and the order must be fixed: a
row's result may not depend on how many rows share the call. So the inner tile is written in LLVM
vector operations; the code generator lowers them to whatever the machine has.

Each dot product keeps 16 partial sums (lane l takes elements l, l + 16, ...) and folds them by
halves: l with l + 8, then l + 4, l + 2, l + 1. Every tile shape gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
WEIGHT_ROWS = 8  # of one tile; the number of output features must be a multiple of it

_I16, _I32, _I64, _F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()


def _vector(element: ir.Type, count: int = LANES) -> ir.VectorType:
    return ir.VectorType(element, count)


def _load(builder: ir.IRBuilder, base: ir.Value, index: ir.Value, element: ir.Type) -> ir.Value:
    """LANES elements from ``base[index]``, aligned to one element only."""
    size = 2 if element is _I16 else 4
    address = builder.add(base, builder.mul(index, ir.Constant(_I64, size)))
    pointer = builder.inttoptr(address, _vector(element).as_pointer())
    return builder.load(pointer, align=size)


def _widen(builder: ir.IRBuilder, bf16: ir.Value) -> ir.Value:
    """BF16 bits to fp32: they are its upper half."""
    wide = builder.zext(bf16, _vector(_I32))
    return builder.bitcast(
        builder.shl(wide, ir.Constant(_vector(_I32), [16] * LANES)), _vector(_F32)
    )


def _fold(builder: ir.IRBuilder, low: ir.Value, high: ir.Value, segments: int) -> ir.Value:
    """Fold each segment of two vectors by halves; their shortened segments follow each other.

    ``low`` and ``high`` hold ``segments`` running sums of equal width; passing one vector as both
    folds it alone, into a vector of half the lanes.
    """
    lanes = low.type.count
    width = lanes // segments
    starts = [s * width for s in range(segments)]
    if low is not high:
        starts += [lanes + start for start in starts]
    first = [start + lane for start in starts for lane in range(width // 2)]
    masks = [ir.Constant(_vector(_I32, len(first)), first)]
    masks.append(ir.Constant(_vector(_I32, len(first)), [lane + width // 2 for lane in first]))
    halves = [builder.shuffle_vector(low, high, mask) for mask in masks]
    return builder.fadd(*halves)


def _reduce(builder: ir.IRBuilder, sums: list[ir.Value]) -> ir.Value:
    """One total per vector of partial sums, in their order, as one vector."""
    segments = 1
    while len(sums) > 1:
        pairs = zip(sums[::2], sums[1::2], strict=True)
        sums = [_fold(builder, low, high, segments) for low, high in pairs]
        segments *= 2
    total = sums[0]
    while total.type.count > segments:
        total = _fold(builder, total, total, segments)
    return total


def _emit(builder: ir.IRBuilder, args: tuple[ir.Value, ...], rows: int) -> None:
    weight, weight_stride, x, x_stride, count, out, out_stride = args
    zero = ir.Constant(_vector(_F32), [0.0] * LANES)
    kind = ir.FunctionType(_vector(_F32), [_vector(_F32)] * 3)
    fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
    sums = [cgutils.alloca_once_value(builder, zero) for _ in range(rows * WEIGHT_ROWS)]
    step = ir.Constant(_I64, LANES)
    with cgutils.for_range_slice(builder, ir.Constant(_I64, 0), count, step, _I64) as (at, _):
        for w in range(WEIGHT_ROWS):
            index = builder.add(builder.mul(weight_stride, ir.Constant(_I64, w)), at)
            wide = _widen(builder, _load(builder, weight, index, _I16))
            for r in range(rows):
                index = builder.add(builder.mul(x_stride, ir.Constant(_I64, r)), at)
                value = _load(builder, x, index, _F32)
                slot = sums[r * WEIGHT_ROWS + w]
                builder.store(builder.call(fma, [wide, value, builder.load(slot)]), slot)
    for r in range(rows):
        mine = sums[r * WEIGHT_ROWS : (r + 1) * WEIGHT_ROWS]
        total = _reduce(builder, [builder.load(slot) for slot in mine])
        offset = builder.mul(out_stride, ir.Constant(_I64, 4 * r))
        pointer = builder.inttoptr(builder.add(out, offset), total.type.as_pointer())
        builder.store(total, pointer, align=4)


def _make_tile(rows: int) -> Callable[..., None]:
    @intrinsic
    def tile(
        typing_context: Any,
        weight: Any,
        weight_stride: Any,
        x: Any,
        x_stride: Any,
        count: Any,
        out: Any,
        out_stride: Any,
    ) -> Any:
        """WEIGHT_ROWS dot products of length ``count`` (a multiple of LANES) for each x row.

        Addresses are in bytes, strides in elements; ``out[r * out_stride + w]`` is fp32.
        """

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            _emit(builder, args, rows)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return tile


tile_1 = _make_tile(1)
tile_2 = _make_tile(2)

"""The two inner products over BF16 rows, as vector instructions for any CPU.

Numba cannot be told to vectorise a sum in one fixed order, and the order must be fixed: a row's
result may not depend on how many rows share the call. So the innermost loops are written in LLVM
vector operations; the code generator lowers them to whatever the machine has.

*Dot tiles* multiply BF16 weight rows with fp32 rows. Each dot product keeps 16 partial sums (lane
l takes elements l, l + 16, ...) and folds them by halves: l with l + 8, then l + 4, l + 2, l + 1.
*Mix tiles* add weighted BF16 rows, one position after the other. Every tile shape gives the
same bits.

All tiles take seven int64: addresses in bytes, strides in elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
WEIGHT_ROWS = 8  # of a dot tile; the number of output features must be a multiple of it

_I16, _I32, _I64, _F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_BYTES = {_I16: 2, _F32: 4}

Emit = Callable[[ir.IRBuilder, tuple[ir.Value, ...], int], None]


def _vector(element: ir.Type, count: int = LANES) -> ir.VectorType:
    return ir.VectorType(element, count)


def _mask(lanes: list[int]) -> ir.Constant:
    return ir.Constant(_vector(_I32, len(lanes)), lanes)


def _int(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


def _pointer(
    builder: ir.IRBuilder, base: ir.Value, index: ir.Value, element: ir.Type, lanes: int
) -> ir.Value:
    """Where ``base[index]`` lies, as a pointer to ``lanes`` elements."""
    address = builder.add(base, builder.mul(index, _int(_BYTES[element])))
    kind = element if lanes == 1 else _vector(element, lanes)
    return builder.inttoptr(address, kind.as_pointer())


def _load(
    builder: ir.IRBuilder, base: ir.Value, index: ir.Value, element: ir.Type, lanes: int = LANES
) -> ir.Value:
    """Elements from ``base[index]`` on, aligned to one element only."""
    pointer = _pointer(builder, base, index, element, lanes)
    return builder.load(pointer, align=_BYTES[element])


def _widen(builder: ir.IRBuilder, bf16: ir.Value) -> ir.Value:
    """BF16 bits to fp32: they are its upper half."""
    wide = builder.zext(bf16, _vector(_I32))
    return builder.bitcast(builder.shl(wide, _mask([16] * LANES)), _vector(_F32))


def _add_product(builder: ir.IRBuilder, slot: ir.Value, a: ir.Value, b: ir.Value) -> None:
    """``slot += a * b`` in one rounding."""
    kind = ir.FunctionType(_vector(_F32), [_vector(_F32)] * 3)
    fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
    builder.store(builder.call(fma, [a, b, builder.load(slot)]), slot)


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
    second = [lane + width // 2 for lane in first]
    halves = [builder.shuffle_vector(low, high, _mask(lanes)) for lanes in (first, second)]
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


def _emit_dot(builder: ir.IRBuilder, args: tuple[ir.Value, ...], rows: int) -> None:
    """``out[r * out_stride + w] = sum(weight[w] * x[r])`` for WEIGHT_ROWS weight rows."""
    weight, weight_stride, x, x_stride, count, out, out_stride = args
    zero = ir.Constant(_vector(_F32), [0.0] * LANES)
    sums = [cgutils.alloca_once_value(builder, zero) for _ in range(rows * WEIGHT_ROWS)]
    loop = cgutils.for_range_slice(builder, _int(0), count, _int(LANES), _I64)
    with loop as (column, _):
        for w in range(WEIGHT_ROWS):
            index = builder.add(builder.mul(weight_stride, _int(w)), column)
            wide = _widen(builder, _load(builder, weight, index, _I16))
            for r in range(rows):
                index = builder.add(builder.mul(x_stride, _int(r)), column)
                value = _load(builder, x, index, _F32)
                _add_product(builder, sums[r * WEIGHT_ROWS + w], wide, value)
    for r in range(rows):
        mine = sums[r * WEIGHT_ROWS : (r + 1) * WEIGHT_ROWS]
        total = _reduce(builder, [builder.load(slot) for slot in mine])
        index = builder.mul(out_stride, _int(r))
        builder.store(total, _pointer(builder, out, index, _F32, WEIGHT_ROWS), align=4)


def _emit_mix(builder: ir.IRBuilder, args: tuple[ir.Value, ...], rows: int) -> None:
    """``out[r, :LANES] += sum over positions of weights[r, position] * values[position]``."""
    values, stride, weights, weight_stride, count, out, out_stride = args
    indices = [builder.mul(out_stride, _int(r)) for r in range(rows)]
    places = [_pointer(builder, out, index, _F32, LANES) for index in indices]
    sums = [cgutils.alloca_once_value(builder, builder.load(place, align=4)) for place in places]
    loop = cgutils.for_range_slice(builder, _int(0), count, _int(1), _I64)
    with loop as (position, _):
        wide = _widen(builder, _load(builder, values, builder.mul(stride, position), _I16))
        for r in range(rows):
            index = builder.add(builder.mul(weight_stride, _int(r)), position)
            weight = _load(builder, weights, index, _F32, lanes=1)
            lane = builder.insert_element(
                ir.Constant(_vector(_F32), ir.Undefined), weight, ir.Constant(_I32, 0)
            )
            same = builder.shuffle_vector(lane, lane, _mask([0] * LANES))
            _add_product(builder, sums[r], same, wide)
    for place, slot in zip(places, sums, strict=True):
        builder.store(builder.load(slot), place, align=4)


def _make_tile(emit: Emit, rows: int) -> Callable[..., None]:
    @intrinsic
    def tile(
        typing_context: Any, source: Any, stride: Any, x: Any, x_stride: Any, count: Any,
        out: Any, out_stride: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            emit(builder, args, rows)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return tile


dot_1 = _make_tile(_emit_dot, 1)
dot_2 = _make_tile(_emit_dot, 2)
mix_1 = _make_tile(_emit_mix, 1)
mix_4 = _make_tile(_emit_mix, 4)

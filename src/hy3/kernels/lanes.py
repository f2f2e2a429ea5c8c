"""Vectors of sixteen 32-bit lanes for numba kernels: one value for each of sixteen groups.

Left to itself LLVM vectorizes only what it can prove about arrays. Here a variable of a kernel is a
vector: ``x * inverse`` is one instruction where the machine has 512 bits, two or four where it has
fewer, with the same result. Operators take two vectors, or a vector and a scalar that stands for
all lanes; comparisons give a mask for ``select``.

Arithmetic is IEEE fp32, each operation rounded by itself. Only ``subtract_product`` may fuse; it is
for products that are exact, where that changes nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
from numba import njit, types
from numba.core import cgutils
from numba.core.typing import signature
from numba.core.typing.templates import ConcreteTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, models, register_model

LANES = 16

_ROW_WORDS = 8
_INT = ir.IntType(32)
_CONTRACT = ("contract",)


class LaneType(types.Type):  # type: ignore[misc]
    """Numba's type of a vector whose lanes hold ``scalar``."""

    def __init__(self, name: str, scalar: types.Type, element: ir.Type) -> None:
        super().__init__(name=name)
        self.scalar = scalar
        self.vector = ir.VectorType(element, LANES)

    def __reduce__(self) -> tuple[Any, ...]:
        return _lane_type, (self.name,)


FLOATS = LaneType("float_lanes", types.float32, ir.FloatType())
INTS = LaneType("int_lanes", types.int32, _INT)
MASK = LaneType("mask_lanes", types.boolean, ir.IntType(1))
_VECTORS = {types.float32: FLOATS, types.int32: INTS}


def _lane_type(name: str) -> LaneType:
    return {each.name: each for each in (FLOATS, INTS, MASK)}[name]


@register_model(LaneType)
class _LaneModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: LaneType) -> None:
        super().__init__(manager, kind, kind.vector)


def _shuffle(builder: Any, one: Any, other: Any, order: list[int]) -> Any:
    indices = ir.Constant(ir.VectorType(_INT, len(order)), order)
    return builder.shuffle_vector(one, other, indices)


def _fill(builder: Any, value: Any, vector: ir.VectorType) -> Any:
    if isinstance(value.type, ir.VectorType):
        return value
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(_INT, 0))
    return _shuffle(builder, first, nothing, [0] * LANES)


def _declare(
    symbol: Any, operand: LaneType, result: LaneType, emit: Callable[[Any, Any, Any], Any]
) -> None:
    """Make ``symbol`` an operator of two vectors, or of a vector and a scalar."""
    scalar = operand.scalar
    pairs = [(operand, operand), (operand, scalar), (scalar, operand)]
    cases = [signature(result, *pair) for pair in pairs]
    infer_global(symbol)(type("LaneOperator", (ConcreteTemplate,), {"cases": cases}))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one, other = (_fill(builder, each, operand.vector) for each in arguments)
        return emit(builder, one, other)

    for pair in pairs:
        lower_builtin(symbol, *pair)(generate)


def _declare_operators() -> None:
    builder = ir.IRBuilder
    _declare(operator.add, FLOATS, FLOATS, builder.fadd)
    _declare(operator.sub, FLOATS, FLOATS, builder.fsub)
    _declare(operator.mul, FLOATS, FLOATS, builder.fmul)
    _declare(operator.truediv, FLOATS, FLOATS, builder.fdiv)
    _declare(operator.add, INTS, INTS, builder.add)
    _declare(operator.sub, INTS, INTS, builder.sub)
    _declare(operator.lshift, INTS, INTS, builder.shl)
    _declare(operator.rshift, INTS, INTS, builder.lshr)  # zeros come in from the left
    for operand in (INTS, MASK):
        _declare(operator.and_, operand, operand, builder.and_)
        _declare(operator.or_, operand, operand, builder.or_)
    for symbol, sign in ((operator.lt, "<"), (operator.gt, ">"), (operator.ge, ">=")):
        _declare(symbol, FLOATS, MASK, lambda b, x, y, sign=sign: b.fcmp_ordered(sign, x, y))
        _declare(symbol, INTS, MASK, lambda b, x, y, sign=sign: b.icmp_signed(sign, x, y))
    _declare(operator.eq, FLOATS, MASK, lambda b, x, y: b.fcmp_ordered("==", x, y))
    _declare(operator.eq, INTS, MASK, lambda b, x, y: b.icmp_signed("==", x, y))


_declare_operators()


@intrinsic
def fill(context: Any, value: Any) -> Any:
    """One float32 or int32 in all lanes."""
    kind = _VECTORS[value]
    return kind(value), lambda c, builder, s, arguments: _fill(builder, arguments[0], kind.vector)


@intrinsic
def select(context: Any, mask: Any, one: Any, other: Any) -> Any:
    """In each lane ``one`` where the mask is set, else ``other``."""
    return one(mask, one, other), lambda c, builder, s, arguments: builder.select(*arguments)


@intrinsic
def any_lane(context: Any, mask: Any) -> Any:
    """Whether the mask is set in some lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    return types.boolean(mask), generate


@intrinsic
def bits_of(context: Any, value: Any) -> Any:
    """The 32 bits of each float."""
    return INTS(value), lambda c, builder, s, arguments: builder.bitcast(arguments[0], INTS.vector)


@intrinsic
def float_of(context: Any, bits: Any) -> Any:
    """The float of each 32 bits."""
    return FLOATS(bits), lambda c, builder, s, arguments: builder.bitcast(
        arguments[0], FLOATS.vector
    )


@intrinsic
def subtract_product(context: Any, total: Any, one: Any, other: Any) -> Any:
    """total - one * other, the product exact."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        product = builder.fmul(arguments[1], arguments[2], flags=_CONTRACT)
        return builder.fsub(arguments[0], product, flags=_CONTRACT)

    return FLOATS(total, one, other), generate


@njit(forceinline=True)
def minimum(one: Any, other: Any) -> Any:
    """The smaller, lane by lane."""
    return select(one < other, one, other)


@njit(forceinline=True)
def maximum(one: Any, other: Any) -> Any:
    """The larger, lane by lane."""
    return select(one > other, one, other)


@intrinsic
def fold(context: Any, function: Any, total: Any, tuples: Any, constants: Any) -> Any:
    """``total = function(total, a[i], b[i], ..., *constants)`` for the tuples (a, b, ...) in order.

    Written out element by element; a loop of numba's would index a tuple through memory. None in
    the place of a tuple, not of the first, stands for a tuple of None.
    """
    row = [each if each is types.none else each.dtype for each in tuples]
    call = context.resolve_function_type(function, (total, *row, *constants), {})

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        run = context.get_function(function, call)
        total = arguments[1]
        rest = cgutils.unpack_tuple(builder, arguments[3])
        columns = cgutils.unpack_tuple(builder, arguments[2])
        for element in range(tuples[0].count):
            items = [
                each if kind is types.none else builder.extract_value(each, element)
                for each, kind in zip(columns, tuples, strict=True)
            ]
            total = run(builder, (total, *items, *rest))
        return total

    return total(function, total, tuples, constants), generate


@intrinsic
def each(context: Any, function: Any, vectors: Any, constant: Any) -> Any:
    """The tuple of ``function(vector, constant)`` of a tuple of vectors."""
    call = context.resolve_function_type(function, (vectors.dtype, constant), {})
    result = types.UniTuple(call.return_type, vectors.count)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        run = context.get_function(function, call)
        values = [
            run(builder, (vector, arguments[2]))
            for vector in cgutils.unpack_tuple(builder, arguments[1])
        ]
        return context.make_tuple(builder, result, values)

    return result(function, vectors, constant), generate


def _at(context: Any, builder: Any, kind: Any, array: Any, index: Any, vector: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())


@intrinsic
def load_rows(context: Any, array: Any, index: Any, stride: Any) -> Any:
    """Sixteen vectors of a float32 array, each ``stride`` behind the one before; None of None."""
    if array is types.none:
        return types.none(array, index, stride), lambda c, *_: c.get_dummy_value()
    result = types.UniTuple(FLOATS, LANES)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_value, index, stride = arguments
        rows = []
        for row in range(LANES):
            start = builder.add(index, builder.mul(stride, ir.Constant(stride.type, row)))
            place = _at(context, builder, array, array_value, start, FLOATS.vector)
            rows.append(builder.load(place, align=4))
        return context.make_tuple(builder, result, rows)

    return result(array, index, stride), generate


@intrinsic
def store(context: Any, array: Any, index: Any, value: Any) -> Any:
    """Sixteen neighbours of a float32, int32 or uint8 array; uint8 takes each lane's low byte."""
    width = array.dtype.bitwidth

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = arguments[2]
        if width == 8:
            vector = builder.trunc(vector, ir.VectorType(ir.IntType(8), LANES))
        place = _at(context, builder, array, *arguments[:2], vector.type)
        builder.store(vector, place, align=width // 8)
        return context.get_dummy_value()

    return types.void(array, index, value), generate


@intrinsic
def load_halves(context: Any, halves: Any, index: Any) -> Any:
    """Sixteen rows of a uint16 array: element k of every row in the upper half of the ints at [k].

    What the lower half holds is undefined. The machine is little-endian.
    """
    result = types.UniTuple(INTS, 2 * _ROW_WORDS)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words = []
        for part in range(_ROW_WORDS):
            start = builder.add(arguments[1], ir.Constant(arguments[1].type, 2 * LANES * part))
            place = _at(context, builder, halves, arguments[0], start, INTS.vector)
            words.append(builder.load(place, align=2))
        sixteen = ir.Constant(INTS.vector, [16] * LANES)
        elements = [
            half
            for word in _transposed(builder, words)
            for half in (builder.shl(word, sixteen), word)
        ]
        return context.make_tuple(builder, result, elements)

    return result(halves, index), generate


def _transposed(builder: Any, words: list[Any]) -> list[Any]:
    """Eight vectors that hold rows of eight words -> word k of every row in vector k."""
    streams = [words]
    # Each round parts the words by the next bit of their position in the row.
    while len(streams) < _ROW_WORDS:
        streams = [
            [
                _shuffle(builder, *pair, list(range(odd, 2 * LANES, 2)))
                for pair in zip(stream[::2], stream[1::2], strict=True)
            ]
            for odd in (0, 1)
            for stream in streams
        ]
    return [stream[0] for stream in streams]


@intrinsic
def store_pairs(context: Any, array: Any, index: Any, low: Any, high: Any) -> Any:
    """The pairs (low, high) of the lanes one after the other in a uint32 array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        order = [lane + half for lane in range(LANES) for half in (0, LANES)]
        vector = _shuffle(builder, *arguments[2:], order)
        builder.store(vector, _at(context, builder, array, *arguments[:2], vector.type), align=4)
        return context.get_dummy_value()

    return types.void(array, index, low, high), generate

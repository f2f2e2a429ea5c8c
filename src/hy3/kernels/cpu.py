"""What the numba twins share: BF16 in memory, fp32 in scratch, addresses instead of arrays.

Kernels take byte addresses and sizes as integers: unpacking a dozen arrays would cost more than
some of the kernels. Callers pass contiguous tensors and check shapes beforehand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from hy3.kernels.cpu_tiles import LANES, WEIGHT_ROWS, dot_1, dot_2, mix_1, mix_4

Bits = NDArray[np.uint16]  # BF16 in memory
Floats = NDArray[np.float32]

# More rows than this go to torch, whose blocked matrix products then win. The twins' rows do not
# depend on their number, torch's do; so the limit lies at the rows of one default engine step, and
# BF16 text does not change with what else is in the batch.
MAX_ROWS = 512


def serves(x: Tensor) -> bool:
    """Whether the twins take these activations: BF16 rows of one step on a CPU."""
    return x.dtype == torch.bfloat16 and x.shape[0] <= MAX_ROWS and x.device.type == "cpu"


def tileable(weight: Tensor) -> bool:
    """Whether a matrix [..., out, in] splits into whole tiles."""
    return weight.shape[-1] % LANES == 0 and weight.shape[-2] % WEIGHT_ROWS == 0


def _make_cast(numba_type: Any, llvm_type: ir.Type) -> Any:
    """An intrinsic from an integer address to a typed pointer."""

    @intrinsic
    def cast(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            return builder.inttoptr(args[0], llvm_type.as_pointer())

        return types.CPointer(numba_type)(types.int64), generate

    return cast


_pointer_u8 = _make_cast(types.uint8, ir.IntType(8))
_pointer_u16 = _make_cast(types.uint16, ir.IntType(16))
_pointer_i32 = _make_cast(types.int32, ir.IntType(32))
_pointer_i64 = _make_cast(types.int64, ir.IntType(64))
_pointer_f32 = _make_cast(types.float32, ir.FloatType())


@intrinsic
def _bits(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def _float(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


@njit(cache=True, nogil=True)
def bf16_array(address: int, rows: int, columns: int) -> Bits:
    """BF16 bits [rows, columns] at an address."""
    return carray(_pointer_u16(address), (rows, columns), np.uint16)


@njit(cache=True, nogil=True)
def f32_array(address: int, rows: int, columns: int) -> Floats:
    """fp32 [rows, columns] at an address."""
    return carray(_pointer_f32(address), (rows, columns), np.float32)


@njit(cache=True, nogil=True)
def u8_array(address: int, count: int) -> NDArray[np.uint8]:
    """uint8 [count] at an address."""
    return carray(_pointer_u8(address), (count,), np.uint8)


@njit(cache=True, nogil=True)
def i32_array(address: int, rows: int, columns: int) -> NDArray[np.int32]:
    """int32 [rows, columns] at an address."""
    return carray(_pointer_i32(address), (rows, columns), np.int32)


@njit(cache=True, nogil=True)
def i64_array(address: int, count: int) -> NDArray[np.int64]:
    """int64 [count] at an address."""
    return carray(_pointer_i64(address), (count,), np.int64)


@njit(cache=True, nogil=True)
def widen(bits: int) -> np.float32:
    """fp32 value of BF16 bits."""
    return _float(np.uint32(bits) << np.uint32(16))


@njit(cache=True, nogil=True)
def narrow(value: np.float32) -> np.uint16:
    """BF16 bits of a finite fp32 value, to nearest even."""
    bits = _bits(value)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.uint16((bits + half) >> np.uint32(16))


@njit(cache=True, nogil=True)
def rounded(value: np.float32) -> np.float32:
    """An fp32 value as BF16 would hold it."""
    return widen(narrow(value))


@njit(cache=True, nogil=True)
def exp(x: np.float32) -> np.float32:
    """e**x in fp32 without a library call, so that loops over it vectorise; 2 ulp.

    x = n ln2 + r: a polynomial in r, and n into the exponent. Inputs are clamped to where the
    result is normal.
    """
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    n = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) - n * np.float32(-2.12194440e-4)
    p = np.float32(1.0 / 720.0)
    p = p * r + np.float32(1.0 / 120.0)
    p = p * r + np.float32(1.0 / 24.0)
    p = p * r + np.float32(1.0 / 6.0)
    p = p * r + np.float32(0.5)
    p = p * r + np.float32(1.0)
    p = p * r + np.float32(1.0)
    return p * _float(np.uint32(np.int32(n) + np.int32(127)) << np.uint32(23))


@njit(cache=True, nogil=True)
def project(weight: int, stride: int, x: Floats, out: Floats) -> None:
    """``out = x @ weight.T``: x [rows, in] and out [rows, features] fp32, weight rows BF16.

    ``weight`` is the address of its first row, ``stride`` the elements from row to row.
    """
    rows, count = x.shape
    from_x, to = x.ctypes.data, out.ctypes.data
    x_stride, out_stride = x.strides[0] // 4, out.strides[0] // 4
    for feature in range(0, out.shape[1], WEIGHT_ROWS):
        block = weight + 2 * feature * stride
        for row in range(0, rows - 1, 2):
            source, target = from_x + 4 * row * x_stride, to + 4 * (row * out_stride + feature)
            dot_2(block, stride, source, x_stride, count, target, out_stride)
        if rows % 2:
            row = rows - 1
            source, target = from_x + 4 * row * x_stride, to + 4 * (row * out_stride + feature)
            dot_1(block, stride, source, x_stride, count, target, out_stride)


# Loops stand for array assignments: numba's own drag seconds of compiling behind them, for the text
# of a shape error.
@njit(cache=True, nogil=True)
def copy_row(source: NDArray[Any], target: NDArray[Any]) -> None:
    """``target = source`` for rows of one size."""
    for i in range(source.size):
        target[i] = source[i]


@njit(cache=True, nogil=True)
def scale_row(row: Floats, factor: np.float32) -> None:
    """Multiply a row, in place."""
    for i in range(row.size):
        row[i] *= factor


@njit(cache=True, nogil=True)
def widen_rows(bits: Bits, out: Floats) -> None:
    """BF16 rows to fp32."""
    for row in range(bits.shape[0]):
        for i in range(bits.shape[1]):
            out[row, i] = widen(bits[row, i])


@njit(cache=True, nogil=True)
def narrow_rows(values: Floats, out: Bits) -> None:
    """fp32 rows to BF16."""
    for row in range(values.shape[0]):
        for i in range(values.shape[1]):
            out[row, i] = narrow(values[row, i])


@njit(cache=True, nogil=True)
def round_rows(values: Floats) -> None:
    """Round fp32 rows to BF16 values, in place."""
    for row in range(values.shape[0]):
        for i in range(values.shape[1]):
            values[row, i] = rounded(values[row, i])


@njit(cache=True, nogil=True)
def sigmoid_rows(values: Floats) -> None:
    """The logistic function of fp32 rows, in place."""
    for row in range(values.shape[0]):
        for i in range(values.shape[1]):
            values[row, i] = np.float32(1.0) / (np.float32(1.0) + exp(-values[row, i]))


@njit(cache=True, nogil=True)
def add_rows(residual: Bits, values: Floats) -> None:
    """``values = residual + rounded(values)``; residual BF16, the sum not yet rounded."""
    for row in range(values.shape[0]):
        for i in range(values.shape[1]):
            values[row, i] = widen(residual[row, i]) + rounded(values[row, i])


@njit(cache=True, nogil=True)
def mix(values: int, stride: int, weights: Floats, out: Floats) -> None:
    """``out += weights @ values``: weights [rows, positions] and out [rows, size] fp32.

    ``values`` is the address of the first BF16 row, ``stride`` the elements from row to row.
    """
    rows, count = weights.shape
    to, of = out.ctypes.data, weights.ctypes.data
    out_stride, weight_stride = out.strides[0] // 4, weights.strides[0] // 4
    for lane in range(0, out.shape[1], LANES):
        source = values + 2 * lane
        whole = rows - rows % 4
        for row in range(0, whole, 4):
            weight, target = of + 4 * row * weight_stride, to + 4 * (row * out_stride + lane)
            mix_4(source, stride, weight, weight_stride, count, target, out_stride)
        for row in range(whole, rows):
            weight, target = of + 4 * row * weight_stride, to + 4 * (row * out_stride + lane)
            mix_1(source, stride, weight, weight_stride, count, target, out_stride)


# These three may be summed in any order, but the order is that of the compiled loop: it depends on
# the row's length alone.
@njit(cache=True, nogil=True, fastmath={"reassoc"})
def total(row: Floats) -> np.float32:
    """Sum of an fp32 row."""
    result = np.float32(0.0)
    for value in row:
        result += value
    return result


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _mean_square(row: Floats) -> np.float32:
    result = np.float32(0.0)
    for value in row:
        result += value * value
    return result / np.float32(row.size)


@njit(cache=True, nogil=True, fastmath={"reassoc", "nnan", "nsz"})
def largest(row: Floats) -> np.float32:
    """Maximum of an fp32 row without NaN."""
    result = row[0]
    for value in row:
        result = max(result, value)
    return result


@njit(cache=True, nogil=True)
def norm_row(row: Floats, weight: Bits, eps: np.float32, out: Floats) -> None:
    """RMS norm of one fp32 row by BF16 weights, rounded to BF16 where torch rounds."""
    factor = np.float32(1.0) / np.sqrt(_mean_square(row) + eps)
    for i in range(row.size):
        out[i] = rounded(widen(weight[i]) * rounded(row[i] * factor))


@njit(cache=True, nogil=True)
def norm_rows(hidden: Bits, weight: Bits, eps: np.float32, out: Floats) -> None:
    """RMS norm of BF16 rows [rows, size] into fp32 ``out``; ``weight`` BF16 [size]."""
    wide = np.empty(hidden.shape[1], np.float32)
    for row in range(hidden.shape[0]):
        for i in range(wide.size):
            wide[i] = widen(hidden[row, i])
        norm_row(wide, weight, eps, out[row])


@njit(cache=True, nogil=True)
def swiglu_rows(x: Floats, gate_up: int, down: int, width: int, out: Floats) -> None:
    """``down(silu(gate x) * up x)`` for fp32 rows holding BF16 values; out fp32, not rounded."""
    rows, hidden = x.shape
    halves = np.empty((rows, 2 * width), np.float32)
    inner = np.empty((rows, width), np.float32)
    project(gate_up, hidden, x, halves)
    for row in range(rows):
        for i in range(width):
            gate = rounded(halves[row, i])
            silu = rounded(gate / (np.float32(1.0) + exp(-gate)))
            inner[row, i] = rounded(silu * rounded(halves[row, width + i]))
    project(down, width, inner, out)

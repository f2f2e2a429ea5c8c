"""A bias-free linear layer, optionally adding a residual."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit
from torch import Tensor

from hy3.kernels import cpu
from hy3.kernels.dispatch import operation


@operation
def linear(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> Tensor:
    """``x @ weight.T`` rounded to ``x.dtype``, then ``residual`` added in ``x.dtype``.

    Args:
        x: [tokens, in]
        weight: [out, in]
        residual: [tokens, out]
    """
    product = F.linear(x, weight)
    return product if residual is None else residual + product


def _cpu_serves(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> bool:
    return cpu.serves(x) and cpu.tileable(weight)


@linear.twin("numba", when=_cpu_serves)
def linear_cpu(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> Tensor:
    """The oracle's roundings, with fp32 sums in one fixed order per row."""
    x = x.contiguous()
    out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype)
    residual = residual if residual is None else residual.contiguous()
    base = 0 if residual is None else residual.data_ptr()
    _linear_rows(x.data_ptr(), weight.data_ptr(), base, out.data_ptr(), *x.shape, out.shape[1])
    return out


@njit(cache=True, nogil=True)
def _linear_rows(
    x: int, weight: int, residual: int, out: int, rows: int, size: int, features: int
) -> None:
    wide = np.empty((rows, size), np.float32)
    y = np.empty((rows, features), np.float32)
    cpu.widen_rows(cpu.bf16_array(x, rows, size), wide)
    cpu.project(weight, size, wide, y)
    if residual:
        cpu.add_rows(cpu.bf16_array(residual, rows, features), y)
    cpu.narrow_rows(y, cpu.bf16_array(out, rows, features))

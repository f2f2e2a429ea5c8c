"""Root-mean-square normalisation."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from hy3.kernels import cpu
from hy3.kernels.dispatch import operation


@operation
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / rms(x) * weight`` over the last dimension.

    The mean square and the division are fp32; the quotient is rounded to ``x.dtype`` before the
    weight is applied, as transformers does.
    """
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


@rms_norm.twin("numba", when=lambda x, weight, eps: x.dim() == 2 and cpu.serves(x))
def rms_norm_cpu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The oracle's roundings for [rows, size]."""
    x = x.contiguous()
    out = torch.empty_like(x)
    _norm_rows(x.data_ptr(), weight.data_ptr(), out.data_ptr(), *x.shape, eps)
    return out


@njit(cache=True, nogil=True)
def _norm_rows(x: int, weight: int, out: int, rows: int, size: int, eps: float) -> None:
    y = np.empty((rows, size), np.float32)
    scale = cpu.bf16_array(weight, 1, size)[0]
    cpu.norm_rows(cpu.bf16_array(x, rows, size), scale, np.float32(eps), y)
    cpu.narrow_rows(y, cpu.bf16_array(out, rows, size))

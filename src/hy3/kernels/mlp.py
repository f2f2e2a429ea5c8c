"""The dense SwiGLU block: pre-norm, gate and up, SiLU product, down, residual."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit
from torch import Tensor

from hy3.kernels import cpu
from hy3.kernels.dispatch import operation
from hy3.kernels.rms_norm import rms_norm


def swiglu(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """``down(silu(gate x) * up x)``; ``gate_up`` is [2 * width, hidden], gate rows first."""
    gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, down)


@operation
def mlp_block(hidden: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor, eps: float) -> Tensor:
    """``hidden + swiglu(rms_norm(hidden))``.

    Args:
        hidden: [tokens, hidden], the residual stream
        norm: [hidden]
        gate_up: [2 * width, hidden]
        down: [hidden, width]
    """
    return hidden + swiglu(rms_norm.oracle(hidden, norm, eps), gate_up, down)


def _cpu_serves(hidden: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor, eps: float) -> bool:
    return cpu.serves(hidden) and cpu.tileable(gate_up) and cpu.tileable(down)


@mlp_block.twin("numba", when=_cpu_serves)
def mlp_block_cpu(
    hidden: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor, eps: float
) -> Tensor:
    """The oracle's roundings, with fp32 sums in one fixed order per row."""
    hidden = hidden.contiguous()
    out = torch.empty_like(hidden)
    _mlp_rows(
        hidden.data_ptr(),
        norm.data_ptr(),
        gate_up.data_ptr(),
        down.data_ptr(),
        out.data_ptr(),
        *hidden.shape,
        down.shape[1],
        eps,
    )
    return out


@njit(cache=True, nogil=True)
def _mlp_rows(
    hidden: int,
    norm: int,
    gate_up: int,
    down: int,
    out: int,
    rows: int,
    size: int,
    width: int,
    eps: float,
) -> None:
    residual = cpu.bf16_array(hidden, rows, size)
    x = np.empty((rows, size), np.float32)
    y = np.empty((rows, size), np.float32)
    cpu.norm_rows(residual, cpu.bf16_array(norm, 1, size)[0], np.float32(eps), x)
    cpu.swiglu_rows(x, gate_up, down, width, y)
    cpu.add_rows(residual, y)
    cpu.narrow_rows(y, cpu.bf16_array(out, rows, size))

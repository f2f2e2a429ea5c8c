"""The dense SwiGLU block: pre-norm, gate and up, SiLU product, down, residual."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

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

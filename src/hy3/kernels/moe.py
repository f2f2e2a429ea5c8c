"""The mixture-of-experts block: pre-norm, router, routed experts, shared expert, residual."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hy3.kernels.dispatch import operation
from hy3.kernels.mlp import swiglu
from hy3.kernels.rms_norm import rms_norm


def route(
    x: Tensor, router: Tensor, expert_bias: Tensor, top_k: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Experts of each row and their weights, all in fp32.

    The bias takes part in the selection only; the weights are the unbiased sigmoids,
    renormalised over the selected experts and scaled.

    Returns:
        weights fp32 and expert ids int64, both [tokens, top_k]
    """
    scores = torch.sigmoid(F.linear(x.float(), router.float()))  # [tokens, experts]
    experts = torch.topk(scores + expert_bias, top_k, dim=-1).indices
    weights = scores.gather(1, experts)
    return weights / (weights.sum(-1, keepdim=True) + 1e-20) * scale, experts


@operation
def moe_block(
    hidden: Tensor,
    norm: Tensor,
    router: Tensor,
    expert_bias: Tensor,
    gate_up: Tensor,
    down: Tensor,
    shared_gate_up: Tensor,
    shared_down: Tensor,
    top_k: int,
    scale: float,
    eps: float,
) -> Tensor:
    """``hidden + (routed + shared)(rms_norm(hidden))``.

    Each weighted expert output is rounded to the model dtype and added in it, in ascending order
    of expert id, so that a row's result does not depend on the other rows' experts.

    Args:
        hidden: [tokens, hidden], the residual stream
        router: [experts, hidden]
        expert_bias: [experts] fp32
        gate_up: [experts, 2 * width, hidden], gate rows first
        down: [experts, hidden, width]
        shared_gate_up: [2 * shared_width, hidden]
        shared_down: [hidden, shared_width]
    """
    x = rms_norm.oracle(hidden, norm, eps)
    weights, experts = route(x, router, expert_bias, top_k, scale)
    routed = torch.zeros_like(x)
    for expert in experts.unique().tolist():
        rows, choice = torch.where(experts == expert)
        out = swiglu(x[rows], gate_up[expert], down[expert])
        routed.index_add_(0, rows, (out * weights[rows, choice, None]).to(x.dtype))
    return hidden + (routed + swiglu(x, shared_gate_up, shared_down))

"""The mixture-of-experts block: pre-norm, router, routed experts, shared expert, residual."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from hy3.kernels import cpu
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


def _cpu_serves(
    hidden: Tensor,
    norm: Tensor,
    router: Tensor,
    expert_bias: Tensor,
    gate_up: Tensor,
    down: Tensor,
    shared_gate_up: Tensor,
    shared_down: Tensor,
    *rest: object,
) -> bool:
    matrices = (router, gate_up, down, shared_gate_up, shared_down)
    return cpu.serves(hidden) and all(map(cpu.tileable, matrices))


@moe_block.twin("numba", when=_cpu_serves)
def moe_block_cpu(
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
    """The oracle's roundings and order of experts; each row reads only the experts it chose."""
    hidden = hidden.contiguous()
    out = torch.empty_like(hidden)
    weights = (norm, router, expert_bias, gate_up, down, shared_gate_up, shared_down)
    _moe_rows(
        hidden.data_ptr(),
        *[weight.data_ptr() for weight in weights],
        out.data_ptr(),
        *hidden.shape,
        router.shape[0],
        down.shape[2],
        shared_down.shape[1],
        top_k,
        scale,
        eps,
    )
    return out


@njit(cache=True, nogil=True)
def _choose(
    scores: cpu.Floats,
    bias: cpu.Floats,
    top_k: int,
    scale: np.float32,
    chosen: NDArray[np.bool_],
) -> None:
    """Mark one row's best experts and turn its scores into weights, in place.

    Of equal scores the lower expert wins.
    """
    total = np.float32(1e-20)
    for _ in range(top_k):
        best = -1
        for expert in range(scores.size):
            value = scores[expert] + bias[expert]
            if not chosen[expert] and (best < 0 or value > scores[best] + bias[best]):
                best = expert
        chosen[best] = True
        total += scores[best]
    for expert in range(scores.size):
        scores[expert] = scores[expert] / total * scale


@njit(cache=True, nogil=True)
def _moe_rows(
    hidden: int,
    norm: int,
    router: int,
    bias: int,
    gate_up: int,
    down: int,
    shared_gate_up: int,
    shared_down: int,
    out: int,
    rows: int,
    size: int,
    experts: int,
    width: int,
    shared_width: int,
    top_k: int,
    scale: float,
    eps: float,
) -> None:
    residual = cpu.bf16_array(hidden, rows, size)
    x = np.empty((rows, size), np.float32)
    scores = np.empty((rows, experts), np.float32)
    shared = np.empty((rows, size), np.float32)
    cpu.norm_rows(residual, cpu.bf16_array(norm, 1, size)[0], np.float32(eps), x)
    cpu.project(router, size, x, scores)
    cpu.swiglu_rows(x, shared_gate_up, shared_down, shared_width, shared)

    chosen = np.zeros((rows, experts), np.bool_)
    cpu.sigmoid_rows(scores)
    biases = cpu.f32_array(bias, 1, experts)[0]
    for row in range(rows):
        _choose(scores[row], biases, top_k, np.float32(scale), chosen[row])
    routed = np.zeros((rows, size), np.float32)
    _add_experts(x, chosen, scores, gate_up, down, width, routed)
    for row in range(rows):
        for i in range(size):
            routed[row, i] += cpu.rounded(shared[row, i])
    cpu.add_rows(residual, routed)
    cpu.narrow_rows(routed, cpu.bf16_array(out, rows, size))


@njit(cache=True, nogil=True)
def _add_experts(
    x: cpu.Floats,
    chosen: NDArray[np.bool_],
    weights: cpu.Floats,
    gate_up: int,
    down: int,
    width: int,
    routed: cpu.Floats,
) -> None:
    """Expert by expert, over the rows that chose it: its weights are read once."""
    rows, size = x.shape
    members = np.empty(rows, np.int64)
    inputs = np.empty((rows, size), np.float32)
    outputs = np.empty((rows, size), np.float32)
    for expert in range(chosen.shape[1]):
        count = 0
        for row in range(rows):
            if chosen[row, expert]:
                members[count] = row
                cpu.copy_row(x[row], inputs[count])
                count += 1
        if not count:
            continue
        gates = gate_up + expert * 4 * width * size
        downs = down + expert * 2 * width * size
        cpu.swiglu_rows(inputs[:count], gates, downs, width, outputs[:count])
        for place in range(count):
            row = members[place]
            weight = weights[row, expert]
            for i in range(size):
                weighted = cpu.rounded(cpu.rounded(outputs[place, i]) * weight)
                routed[row, i] = cpu.rounded(routed[row, i] + weighted)

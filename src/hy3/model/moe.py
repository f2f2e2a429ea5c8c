"""The feed-forward block of a layer: dense in the leading layers, experts in the others."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hy3.checkpoint.model_config import Hy3Config
from hy3.kernels.mlp import mlp_block
from hy3.kernels.moe import moe_block


@dataclass(frozen=True)
class MlpWeights:
    """Weights of a dense block; gate rows come before up rows."""

    norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * intermediate, hidden]
    down: Tensor  # [hidden, intermediate]


@dataclass(frozen=True)
class MoeWeights:
    """Weights of an expert block; gate rows come before up rows."""

    norm: Tensor  # [hidden]
    router: Tensor  # [experts, hidden]
    expert_bias: Tensor  # [experts] fp32, whatever the model dtype
    gate_up: Tensor  # [experts, 2 * expert_size, hidden]
    down: Tensor  # [experts, hidden, expert_size]
    shared_gate_up: Tensor  # [2 * shared_expert_size, hidden]
    shared_down: Tensor  # [hidden, shared_expert_size]


def feed_forward_block(
    hidden: Tensor, weights: MlpWeights | MoeWeights, config: Hy3Config
) -> Tensor:
    """``hidden + feed_forward(rms_norm(hidden))``; [tokens, hidden]."""
    if isinstance(weights, MlpWeights):
        return mlp_block(hidden, weights.norm, weights.gate_up, weights.down, config.rms_norm_eps)
    return moe_block(
        hidden,
        weights.norm,
        weights.router,
        weights.expert_bias,
        weights.gate_up,
        weights.down,
        weights.shared_gate_up,
        weights.shared_down,
        config.experts_per_token,
        config.router_scale,
        config.rms_norm_eps,
    )

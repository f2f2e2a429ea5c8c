"""The multi-token-prediction layer: one more decoder layer that proposes the next token but one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hy3.checkpoint.model_config import Hy3Config
from hy3.kernels.linear import linear
from hy3.kernels.rms_norm import rms_norm
from hy3.model.layer import LayerWeights


@dataclass(frozen=True)
class MtpWeights:
    """Weights of the MTP layer; the embedding and the head are the trunk's."""

    embed_norm: Tensor  # enorm, [hidden]
    hidden_norm: Tensor  # hnorm, [hidden]
    projection: Tensor  # eh_proj, [hidden, 2 * hidden]
    layer: LayerWeights
    final_norm: Tensor  # [hidden]


def mtp_input(embedded: Tensor, hidden: Tensor, weights: MtpWeights, config: Hy3Config) -> Tensor:
    """The residual stream that enters the MTP layer, [tokens, hidden].

    Args:
        embedded: embeddings of the tokens at position i + 1, [tokens, hidden]
        hidden: states of position i *after* the trunk's final norm (or, for a deeper draft,
            after the MTP layer's own), [tokens, hidden]
    """
    eps = config.rms_norm_eps
    left = rms_norm(embedded, weights.embed_norm, eps)
    right = rms_norm(hidden, weights.hidden_norm, eps)
    return linear(torch.cat((left, right), dim=-1), weights.projection)

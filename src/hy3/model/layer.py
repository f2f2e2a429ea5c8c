"""One decoder layer: attention, then feed-forward, each adding to the residual stream."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hy3.checkpoint.model_config import Hy3Config
from hy3.model.attention import AttentionWeights, Rows, attention_block
from hy3.model.moe import MlpWeights, MoeWeights, feed_forward_block


@dataclass(frozen=True)
class LayerWeights:
    """Weights of one decoder layer."""

    attention: AttentionWeights
    feed_forward: MlpWeights | MoeWeights


def decoder_layer(
    hidden: Tensor, weights: LayerWeights, rows: Rows, layer: int, config: Hy3Config
) -> Tensor:
    """The residual stream after layer ``layer``; [tokens, hidden]."""
    hidden = attention_block(hidden, weights.attention, rows, layer, config)
    return feed_forward_block(hidden, weights.feed_forward, config)

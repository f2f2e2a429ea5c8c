"""The attention block: input, cache, attention, output projection, residual."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hy3.checkpoint.model_config import Hy3Config
from hy3.kernels.attention_input import attention_input
from hy3.kernels.kv_store import store_kv
from hy3.kernels.linear import linear
from hy3.kernels.paged_attention import causal_attention, paged_attention
from hy3.model.batch import Batch
from hy3.model.kv_pool import KvPool


@dataclass(frozen=True)
class AttentionWeights:
    """Weights of one attention block."""

    norm: Tensor  # [hidden]
    qkv: Tensor  # [(heads + 2 kv_heads) * head_dim, hidden]: q rows, then k, then v
    q_norm: Tensor  # [head_dim]
    k_norm: Tensor  # [head_dim]
    out: Tensor  # [hidden, heads * head_dim]
    kv_scales: tuple[float, float]  # of an E4M3 cache; 1.0 where the checkpoint has none


@dataclass(frozen=True)
class Rows:
    """Where the rows of one pass stand: their rotary tables, and their cache if they have one."""

    cos: Tensor  # [tokens, head_dim/2]
    sin: Tensor
    batch: Batch | None = None  # None: one whole sequence, attending within itself
    pool: KvPool | None = None


def attention_block(
    hidden: Tensor, weights: AttentionWeights, rows: Rows, layer: int, config: Hy3Config
) -> Tensor:
    """``hidden + attention(rms_norm(hidden))``; [tokens, hidden]."""
    q, k, v = attention_input(
        hidden,
        weights.norm,
        weights.qkv,
        weights.q_norm,
        weights.k_norm,
        rows.cos,
        rows.sin,
        config.num_heads,
        config.rms_norm_eps,
    )
    if rows.batch is None or rows.pool is None:
        attended = causal_attention(q, k, v, config.head_dim**-0.5)
    else:
        attended = _cached_attention(q, k, v, rows.batch, rows.pool, layer)
    return linear(attended.flatten(1), weights.out, hidden)


def _cached_attention(
    q: Tensor, k: Tensor, v: Tensor, batch: Batch, pool: KvPool, layer: int
) -> Tensor:
    keys, values, k_scale, v_scale = pool.layer(layer)
    store_kv(k, v, keys, values, batch.slots, k_scale, v_scale)
    return paged_attention(
        q,
        keys,
        values,
        batch.query_starts,
        batch.context_lengths,
        batch.block_tables,
        k_scale,
        v_scale,
    )

"""Causal attention of new rows over a paged cache that already holds their keys and values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hy3.kernels.dispatch import operation
from hy3.kernels.kv_store import FP8, as_storable


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of the last ``len(q)`` positions of one sequence over all its positions.

    Args:
        q: [queries, heads, head_dim]
        k: [keys, kv_heads, head_dim]; ``v`` likewise; query head h reads kv head
            h // (heads / kv_heads)

    Returns:
        [queries, heads, head_dim]
    """
    queries, keys = q.shape[0], k.shape[0]
    visible = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))  # [1, heads, positions, head_dim]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1)


def gather(cache: Tensor, blocks: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """The first ``length`` positions of a block table: [length, kv_heads, head_dim]."""
    rows = as_storable(cache)[blocks].flatten(0, 1)[:length]
    return (rows.view(FP8) if cache.dtype == FP8 else rows).to(dtype)


@operation
def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_starts: Tensor,
    context_lengths: Tensor,
    block_tables: Tensor,
    k_scale: float,
    v_scale: float,
) -> Tensor:
    """Attention of each sequence's rows over its own blocks.

    Args:
        q: [tokens, heads, head_dim]
        k_cache: [blocks, block_size, kv_heads, head_dim]; ``v_cache`` likewise
        query_starts: [sequences + 1] int32, sequence b owns rows query_starts[b:b + 2]
        context_lengths: [sequences] int32, positions in the cache, the new rows included
        block_tables: [sequences, max_blocks] int32
        k_scale: multiplier of cached keys if the cache is E4M3; ``v_scale`` of values

    Returns:
        [tokens, heads, head_dim] in ``q.dtype``
    """
    scale = q.shape[-1] ** -0.5
    if k_cache.dtype == FP8:
        scale = scale * k_scale
    out = torch.empty_like(q)
    starts = query_starts.tolist()
    block_size = k_cache.shape[1]
    for index, length in enumerate(context_lengths.tolist()):
        blocks = block_tables[index, : -(-length // block_size)].long()
        k = gather(k_cache, blocks, length, q.dtype)
        v = gather(v_cache, blocks, length, q.dtype)
        rows = slice(starts[index], starts[index + 1])
        out[rows] = causal_attention(q[rows], k, v, scale)
    return out * v_scale if v_cache.dtype == FP8 else out

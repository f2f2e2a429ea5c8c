"""What precedes attention: pre-norm, the joint q/k/v projection, q/k norm, rotary embedding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hy3.kernels.dispatch import operation
from hy3.kernels.rms_norm import rms_norm


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + head_dim/2) of each head.

    Args:
        x: [tokens, heads, head_dim]
        cos: [tokens, head_dim/2] in ``x.dtype``; ``sin`` likewise
    """
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((low * cos + -high * sin, high * cos + low * sin), dim=-1)


@operation
def attention_input(
    hidden: Tensor,
    norm: Tensor,
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    num_heads: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of each row; q and k are normed per head, then rotated.

    Args:
        hidden: [tokens, hidden], the residual stream before the norm
        norm: [hidden], the layer's input norm
        qkv: [(heads + 2 kv_heads) * head_dim, hidden], rows of q, then k, then v
        q_norm: [head_dim]; ``k_norm`` likewise
        cos: [tokens, head_dim/2]; ``sin`` likewise

    Returns:
        q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim]
    """
    x = rms_norm.oracle(hidden, norm, eps)
    rows = F.linear(x, qkv).unflatten(-1, (-1, q_norm.numel()))
    num_kv_heads = (rows.shape[1] - num_heads) // 2
    q, k, v = rows.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    q = rotate(rms_norm.oracle(q, q_norm, eps), cos, sin)
    k = rotate(rms_norm.oracle(k, k_norm, eps), cos, sin)
    return q, k, v.contiguous()

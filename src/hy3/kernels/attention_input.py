"""What precedes attention: pre-norm, the joint q/k/v projection, q/k norm, rotary embedding."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit
from torch import Tensor

from hy3.kernels import cpu
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


def _cpu_serves(hidden: Tensor, norm: Tensor, qkv: Tensor, *rest: object) -> bool:
    return cpu.serves(hidden) and cpu.tileable(qkv)


@attention_input.twin("numba", when=_cpu_serves)
def attention_input_cpu(
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
    """The oracle's roundings, with fp32 sums in one fixed order per row."""
    rows, size = hidden.shape
    head_dim = q_norm.numel()
    heads = qkv.shape[0] // head_dim
    num_kv_heads = (heads - num_heads) // 2
    hidden = hidden.contiguous()
    joint = torch.empty(heads * rows * head_dim, dtype=hidden.dtype)  # q, k, v one after another
    _input_rows(
        hidden.data_ptr(),
        norm.data_ptr(),
        qkv.data_ptr(),
        q_norm.data_ptr(),
        k_norm.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        joint.data_ptr(),
        rows,
        size,
        num_heads,
        num_kv_heads,
        head_dim,
        eps,
    )
    counts = (num_heads, num_kv_heads, num_kv_heads)
    parts = joint.split([rows * count * head_dim for count in counts])
    q, k, v = (part.view(rows, -1, head_dim) for part in parts)
    return q, k, v


@njit(cache=True, nogil=True)
def _rotate_row(x: cpu.Floats, cos: cpu.Bits, sin: cpu.Bits, out: cpu.Bits) -> None:
    half = cos.size
    for i in range(half):
        c, s = cpu.widen(cos[i]), cpu.widen(sin[i])
        low, high = x[i], x[i + half]
        out[i] = cpu.narrow(cpu.rounded(low * c) + cpu.rounded(-high * s))
        out[i + half] = cpu.narrow(cpu.rounded(high * c) + cpu.rounded(low * s))


@njit(cache=True, nogil=True)
def _input_rows(
    hidden: int,
    norm: int,
    qkv: int,
    q_norm: int,
    k_norm: int,
    cos: int,
    sin: int,
    out: int,
    rows: int,
    size: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    eps: float,
) -> None:
    x = np.empty((rows, size), np.float32)
    y = np.empty((rows, (heads + 2 * kv_heads) * head_dim), np.float32)
    scale = np.float32(eps)
    norm_weight = cpu.bf16_array(norm, 1, size)[0]
    cpu.norm_rows(cpu.bf16_array(hidden, rows, size), norm_weight, scale, x)
    cpu.project(qkv, size, x, y)
    cpu.round_rows(y)

    cosines = cpu.bf16_array(cos, rows, head_dim // 2)
    sines = cpu.bf16_array(sin, rows, head_dim // 2)
    q_weight = cpu.bf16_array(q_norm, 1, head_dim)[0]
    k_weight = cpu.bf16_array(k_norm, 1, head_dim)[0]
    q = cpu.bf16_array(out, rows * heads, head_dim)
    k = cpu.bf16_array(out + 2 * q.size, rows * kv_heads, head_dim)
    v = cpu.bf16_array(out + 2 * (q.size + k.size), rows, kv_heads * head_dim)
    normed = np.empty(head_dim, np.float32)
    for row in range(rows):
        parts = y[row].reshape(heads + 2 * kv_heads, head_dim)
        for head in range(heads):
            cpu.norm_row(parts[head], q_weight, scale, normed)
            _rotate_row(normed, cosines[row], sines[row], q[row * heads + head])
        for head in range(kv_heads):
            cpu.norm_row(parts[heads + head], k_weight, scale, normed)
            _rotate_row(normed, cosines[row], sines[row], k[row * kv_heads + head])
    cpu.narrow_rows(y[:, (heads + kv_heads) * head_dim :], v)

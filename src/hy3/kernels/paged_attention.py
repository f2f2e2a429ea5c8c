"""Causal attention of new rows over a paged cache that already holds their keys and values."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit
from torch import Tensor

from hy3.kernels import cpu
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


# Every E4M3 value is exact in BF16; the table is indexed by its byte.
_E4M3_AS_BF16 = torch.arange(256, dtype=torch.uint8).view(FP8).bfloat16()


def _cpu_serves(q: Tensor, k_cache: Tensor, *rest: object) -> bool:
    whole_tiles = q.shape[-1] % cpu.LANES == 0 and k_cache.shape[1] % cpu.WEIGHT_ROWS == 0
    return cpu.serves(q) and whole_tiles and k_cache.dtype in (torch.bfloat16, FP8)


@paged_attention.twin("numba", when=_cpu_serves)
def paged_attention_cpu(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_starts: Tensor,
    context_lengths: Tensor,
    block_tables: Tensor,
    k_scale: float,
    v_scale: float,
) -> Tensor:
    """Two passes over each row's blocks, scores and sums in fp32."""
    q = q.contiguous()
    out = torch.empty_like(q)
    _, block_size, kv_heads, head_dim = k_cache.shape
    is_fp8 = k_cache.dtype == FP8
    decoded = torch.empty(block_size * head_dim if is_fp8 else 0, dtype=torch.bfloat16)
    _attend_rows(
        q.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        query_starts.data_ptr(),
        context_lengths.data_ptr(),
        block_tables.data_ptr(),
        out.data_ptr(),
        _E4M3_AS_BF16.data_ptr(),
        decoded.data_ptr(),
        *block_tables.shape,
        block_size,
        q.shape[1],
        kv_heads,
        head_dim,
        (k_scale if is_fp8 else 1.0) * head_dim**-0.5,
        v_scale if is_fp8 else 1.0,
        is_fp8,
    )
    return out


@njit(cache=True, nogil=True)
def _attend_rows(
    q: int,
    k_cache: int,
    v_cache: int,
    query_starts: int,
    context_lengths: int,
    block_tables: int,
    out: int,
    table: int,
    decoded: int,
    sequences: int,
    max_blocks: int,
    block_size: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    v_scale: float,
    is_fp8: bool,
) -> None:
    starts = cpu.i32_array(query_starts, 1, sequences + 1)[0]
    lengths = cpu.i32_array(context_lengths, 1, sequences)[0]
    blocks = cpu.i32_array(block_tables, sequences, max_blocks)
    group = heads // kv_heads
    row_size = kv_heads * head_dim
    queries = np.empty((group, head_dim), np.float32)
    for sequence in range(sequences):
        stop = starts[sequence + 1]
        table_row = blocks[sequence]
        scores = np.empty((group, max_blocks * block_size), np.float32)
        for row in range(starts[sequence], stop):
            visible = lengths[sequence] - (stop - 1 - row)
            for kv_head in range(kv_heads):
                start = 2 * (row * heads + kv_head * group) * head_dim
                first = kv_head * head_dim
                cpu.widen_rows(cpu.bf16_array(q + start, group, head_dim), queries)
                mixed = np.zeros((group, head_dim), np.float32)
                for place in range(-(-visible // block_size)):
                    at = table_row[place] * block_size * row_size + first
                    keys, stride = k_cache + 2 * at, row_size
                    if is_fp8:
                        keys, stride = decoded, head_dim
                        _decode(k_cache + at, row_size, table, decoded, block_size, head_dim)
                    window = scores[:, place * block_size : (place + 1) * block_size]
                    cpu.project(keys, stride, queries, window)
                _softmax(scores[:, :visible], np.float32(scale), np.float32(v_scale))
                for place in range(-(-visible // block_size)):
                    at = table_row[place] * block_size * row_size + first
                    values, stride = v_cache + 2 * at, row_size
                    if is_fp8:
                        values, stride = decoded, head_dim
                        _decode(v_cache + at, row_size, table, decoded, block_size, head_dim)
                    end = min((place + 1) * block_size, visible)
                    cpu.mix(values, stride, scores[:, place * block_size : end], mixed)
                cpu.narrow_rows(mixed, cpu.bf16_array(out + start, group, head_dim))


@njit(cache=True, nogil=True)
def _decode(
    codes: int, stride: int, table: int, decoded: int, positions: int, head_dim: int
) -> None:
    """E4M3 rows of one head, ``stride`` bytes apart, to dense BF16."""
    bits = cpu.bf16_array(table, 1, 256)[0]
    rows = cpu.bf16_array(decoded, positions, head_dim)
    for position in range(positions):
        row = cpu.u8_array(codes + position * stride, head_dim)
        for i in range(head_dim):
            rows[position, i] = bits[row[i]]


@njit(cache=True, nogil=True)
def _softmax(scores: cpu.Floats, scale: np.float32, total: np.float32) -> None:
    """Each row of raw scores to weights that add up to ``total``, in place."""
    for row in range(scores.shape[0]):
        line = scores[row]
        top = cpu.largest(line) * scale
        for i in range(line.size):
            line[i] = cpu.exp(line[i] * scale - top)
        cpu.scale_row(line, total / cpu.total(line))

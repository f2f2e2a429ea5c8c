"""Writing new keys and values into the paged cache."""

from __future__ import annotations

import torch
from numba import njit
from torch import Tensor

from hy3.kernels import cpu
from hy3.kernels.dispatch import operation

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0


def to_cache_dtype(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """``x / scale`` in the cache's dtype; E4M3 saturates, because its overflow would be NaN."""
    if dtype != FP8:
        return x.to(dtype)
    return (x.float() / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8)


def as_storable(x: Tensor) -> Tensor:
    """The same memory in a dtype that every device can index: torch does not index E4M3."""
    return x.view(torch.uint8) if x.dtype == FP8 else x


@operation
def store_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scale: float,
    v_scale: float,
) -> None:
    """Write row t to slot ``slots[t]``, in place; a slot of -1 is not written.

    Args:
        k: [tokens, kv_heads, head_dim]; ``v`` likewise
        k_cache: [blocks, block_size, kv_heads, head_dim]; ``v_cache`` likewise
        slots: [tokens] int64, block * block_size + offset
        k_scale: the cache holds ``k / k_scale`` if its dtype is E4M3; other dtypes ignore it
    """
    kept = slots >= 0
    for rows, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        flat = as_storable(cache).flatten(0, 1)  # [slots, kv_heads, head_dim]
        flat[slots[kept]] = as_storable(to_cache_dtype(rows[kept], cache.dtype, scale))


def _cpu_serves(k: Tensor, v: Tensor, k_cache: Tensor, *rest: object) -> bool:
    return cpu.serves(k) and k_cache.dtype == torch.bfloat16


@store_kv.twin("numba", when=_cpu_serves)
def store_kv_cpu(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scale: float,
    v_scale: float,
) -> None:
    """Plain copies into a BF16 cache."""
    k, v = k.contiguous(), v.contiguous()
    caches = (k_cache.data_ptr(), v_cache.data_ptr())
    _copy_rows(k.data_ptr(), v.data_ptr(), *caches, slots.data_ptr(), len(k), k.numel() // len(k))


@njit(cache=True, nogil=True)
def _copy_rows(
    k: int, v: int, k_cache: int, v_cache: int, slots: int, rows: int, size: int
) -> None:
    targets = cpu.i64_array(slots, rows)
    new_k, new_v = cpu.bf16_array(k, rows, size), cpu.bf16_array(v, rows, size)
    for row in range(rows):
        if targets[row] >= 0:
            offset = 2 * targets[row] * size
            cpu.copy_row(new_k[row], cpu.bf16_array(k_cache + offset, 1, size)[0])
            cpu.copy_row(new_v[row], cpu.bf16_array(v_cache + offset, 1, size)[0])

"""``KvPool``: the paged keys and values of every layer that has a cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hy3.checkpoint.model_config import Hy3Config


class KvPool:
    """Blocks of positions; layer index ``config.num_layers`` is the MTP layer's.

    ``keys[layer]`` and ``values[layer]`` are [num_blocks, block_size, kv_heads, head_dim] in
    bfloat16, float32 or float8_e4m3fn. E4M3 holds x / scale; the scales default to 1.
    """

    def __init__(
        self,
        config: Hy3Config,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype = torch.bfloat16,
        device: str | torch.device = "cpu",
        scales: Sequence[tuple[float, float]] | None = None,
    ) -> None:
        shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
        layers = range(config.num_cached_layers)
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.dtype = dtype
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.scales = tuple(scales) if scales is not None else ((1.0, 1.0),) * len(layers)
        assert len(self.scales) == len(layers)

    def layer(self, index: int) -> tuple[Tensor, Tensor, float, float]:
        """Keys, values, and their scales."""
        return self.keys[index], self.values[index], *self.scales[index]


def block_bytes(config: Hy3Config, block_size: int, dtype: torch.dtype) -> int:
    """Bytes that one block takes over all cached layers, keys and values together."""
    elements = block_size * config.num_kv_heads * config.head_dim * config.num_cached_layers
    return 2 * elements * int(dtype.itemsize)

"""Rotary position tables: plain ``default`` rope, no scaling of frequencies."""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_frequencies(theta: float, head_dim: int) -> Tensor:
    """[head_dim/2] fp32."""
    return 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))


def rope_tables(
    positions: Tensor, frequencies: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """cos and sin, [tokens, head_dim/2]: angles in fp32, tables in the model dtype."""
    angles = positions[:, None].float() * frequencies
    return angles.cos().to(dtype), angles.sin().to(dtype)

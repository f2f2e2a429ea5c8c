"""Small generated checkpoints: random weights, and weights that follow a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from support.chat_files import TINY_SUFFIX, make_tokenizer, write_chat_files, write_config
from support.weight_files import tensor_shapes, write_shards

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "expert_hidden_dim": 32,
    "max_position_embeddings": 2048,
}


def make_random(folder: Path, seed: int = 0, shards: int = 3, **dims: Any) -> Path:
    """Write a random, valid ``hy_v3`` checkpoint with tokenizer files; returns ``folder``.

    ``dims`` are config.json keys over ``SMALL``; ``num_nextn_predict_layers=0`` drops the MTP
    layer. Weights keep activations near unit size; norms, router and expert bias all matter.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(TINY_SUFFIX)
    config = write_config(folder, tokenizer, TINY_SUFFIX, **(SMALL | dims))
    write_chat_files(folder, tokenizer, TINY_SUFFIX)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: random_tensor(name, shape, generator) for name, shape in tensor_shapes(config).items()
    }
    write_shards(folder, tensors, shards)
    return folder


def random_tensor(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Norms around one, a spread expert bias (F32), projections of gain one, unit embeddings."""
    noise = torch.randn(shape, generator=generator)
    if name.endswith("expert_bias"):
        return noise * 0.1
    if len(shape) == 1:
        return (1 + 0.2 * noise).bfloat16()
    gain = 1.0 if name.endswith("embed_tokens.weight") else shape[-1] ** -0.5
    return (noise * gain).bfloat16()

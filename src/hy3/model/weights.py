"""``Weights``: every tensor of the model, stacked once into the layout that the operations read.

q, k and v lie in one matrix, gate and up in one, and the experts of a layer in two. Quantized
weights are decoded while they are read: NVFP4 made by ``hy3`` is exact in BF16, FP8 is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hy3.checkpoint.index import open_checkpoint
from hy3.checkpoint.model_config import Hy3Config
from hy3.checkpoint.reader import TensorReader
from hy3.model.attention import AttentionWeights
from hy3.model.layer import LayerWeights
from hy3.model.moe import MlpWeights, MoeWeights
from hy3.model.mtp import MtpWeights
from hy3.model.weight_reader import WeightReader


@dataclass(frozen=True)
class Weights:
    """All weights of one checkpoint."""

    embedding: Tensor  # [vocab, hidden]
    head: Tensor  # [vocab, hidden]
    norm: Tensor  # [hidden]
    layers: tuple[LayerWeights, ...]
    mtp: MtpWeights | None


def load_weights(
    folder: Path,
    config: Hy3Config,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.bfloat16,
) -> Weights:
    """Read a checkpoint folder; raises InputError for a missing or misshapen tensor."""
    with TensorReader(open_checkpoint(folder)) as tensors:
        read = WeightReader(tensors, device, dtype)
        vocab, hidden = config.vocab_size, config.hidden_size
        return Weights(
            embedding=read.weight("model.embed_tokens.weight", vocab, hidden),
            head=read.weight("lm_head.weight", vocab, hidden),
            norm=read.weight("model.norm.weight", hidden),
            layers=tuple(_layer(read, index, config) for index in range(config.num_layers)),
            mtp=_mtp(read, config) if config.num_mtp_layers else None,
        )


def _mtp(read: WeightReader, config: Hy3Config) -> MtpWeights:
    prefix, hidden = f"model.layers.{config.num_layers}", config.hidden_size
    return MtpWeights(
        embed_norm=read.weight(f"{prefix}.enorm.weight", hidden),
        hidden_norm=read.weight(f"{prefix}.hnorm.weight", hidden),
        projection=read.weight(f"{prefix}.eh_proj.weight", hidden, 2 * hidden),
        layer=_layer(read, config.num_layers, config),
        final_norm=read.weight(f"{prefix}.final_layernorm.weight", hidden),
    )


def _layer(read: WeightReader, index: int, config: Hy3Config) -> LayerWeights:
    prefix = f"model.layers.{index}"
    feed_forward = _moe if config.is_moe(index) else _mlp
    return LayerWeights(_attention(read, prefix, config), feed_forward(read, prefix, config))


def _attention(read: WeightReader, prefix: str, config: Hy3Config) -> AttentionWeights:
    base, hidden = f"{prefix}.self_attn", config.hidden_size
    width = config.num_heads * config.head_dim
    joint = width + 2 * config.num_kv_heads * config.head_dim
    return AttentionWeights(
        norm=read.weight(f"{prefix}.input_layernorm.weight", hidden),
        qkv=read.rows([f"{base}.{part}_proj.weight" for part in "qkv"], joint, hidden),
        q_norm=read.weight(f"{base}.q_norm.weight", config.head_dim),
        k_norm=read.weight(f"{base}.k_norm.weight", config.head_dim),
        out=read.weight(f"{base}.o_proj.weight", hidden, width),
        kv_scales=(read.scalar(f"{base}.k_scale", 1.0), read.scalar(f"{base}.v_scale", 1.0)),
    )


def _mlp(read: WeightReader, prefix: str, config: Hy3Config) -> MlpWeights:
    gate_up, down = _swiglu(read, f"{prefix}.mlp", config.intermediate_size, config.hidden_size)
    norm = read.weight(f"{prefix}.post_attention_layernorm.weight", config.hidden_size)
    return MlpWeights(norm, gate_up, down)


def _moe(read: WeightReader, prefix: str, config: Hy3Config) -> MoeWeights:
    hidden, width, experts = config.hidden_size, config.expert_size, config.num_experts
    base = f"{prefix}.mlp"
    names = [f"{base}.experts.{expert}" for expert in range(experts)]
    halves = [f"{name}.{half}_proj.weight" for name in names for half in ("gate", "up")]
    downs = [f"{name}.down_proj.weight" for name in names]
    shared = _swiglu(read, f"{base}.shared_mlp", config.shared_expert_size, hidden)
    return MoeWeights(
        norm=read.weight(f"{prefix}.post_attention_layernorm.weight", hidden),
        router=read.weight(f"{base}.router.gate.weight", experts, hidden),
        expert_bias=read.full_precision(f"{base}.expert_bias", experts),
        gate_up=read.rows(halves, experts, 2 * width, hidden),
        down=read.rows(downs, experts, hidden, width),
        shared_gate_up=shared[0],
        shared_down=shared[1],
    )


def _swiglu(read: WeightReader, prefix: str, width: int, hidden: int) -> tuple[Tensor, Tensor]:
    halves = [f"{prefix}.{half}_proj.weight" for half in ("gate", "up")]
    down = read.weight(f"{prefix}.down_proj.weight", hidden, width)
    return read.rows(halves, 2 * width, hidden), down

"""Names, shapes and shard files of a generated ``hy_v3`` checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(config: Mapping[str, Any]) -> Shapes:
    """Every tensor of the BF16 checkpoint in the published ("inner") layout, MTP layer included."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    trunk = config["num_hidden_layers"]
    shapes: Shapes = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for layer in range(trunk + config["num_nextn_predict_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + name: shape for name, shape in _attention_shapes(config).items()}
        dense = layer < config["first_k_dense_replace"]
        mlp = _mlp_shapes("mlp.", config["intermediate_size"], hidden) if dense else _moe(config)
        shapes |= {prefix + name: shape for name, shape in mlp.items()}
        if layer == trunk:
            for name in ("enorm", "hnorm", "final_layernorm"):
                shapes[f"{prefix}{name}.weight"] = (hidden,)
            shapes[f"{prefix}eh_proj.weight"] = (hidden, 2 * hidden)
    return shapes


def _attention_shapes(config: Mapping[str, Any]) -> Shapes:
    hidden, size = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (size,),
        "self_attn.k_norm.weight": (size,),
    }


def _mlp_shapes(prefix: str, width: int, hidden: int) -> Shapes:
    return {
        f"{prefix}gate_proj.weight": (width, hidden),
        f"{prefix}up_proj.weight": (width, hidden),
        f"{prefix}down_proj.weight": (hidden, width),
    }


def _moe(config: Mapping[str, Any]) -> Shapes:
    hidden, width, count = (
        config[key] for key in ("hidden_size", "expert_hidden_dim", "num_experts")
    )
    shapes: Shapes = {"mlp.router.gate.weight": (count, hidden), "mlp.expert_bias": (count,)}
    for expert in range(count):
        shapes |= _mlp_shapes(f"mlp.experts.{expert}.", width, hidden)
    return shapes | _mlp_shapes("mlp.shared_mlp.", width * config["num_shared_experts"], hidden)


def write_shards(folder: Path, tensors: Mapping[str, torch.Tensor], shards: int) -> None:
    """Deal the tensors out over the shards in a fixed scatter and write the index.

    Neighbours in name order land in different files, so that gate and up of one expert do.
    """
    names = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    weight_map = {tensor: names[i % shards] for i, tensor in enumerate(sorted(tensors))}
    for name in names:
        part = {key: tensors[key].contiguous() for key in tensors if weight_map[key] == name}
        save_file(part, folder / name, metadata={"format": "pt"})
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def load_shards(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a folder that has some."""
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    assert tensors, f"{folder} holds no tensor"
    return tensors

"""A trained network as the published ("inner") tensors, and back."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tools.tiny.network import Block, Mlp, Moe, Network
from torch import Tensor, nn

SHARDS = 2


def tensors_of(network: Network) -> dict[str, Tensor]:
    """Published name -> the network's own tensor, or a view into it."""
    named: dict[str, Tensor] = {
        "model.embed_tokens.weight": network.embed.weight,
        "model.norm.weight": network.norm.weight,
        "lm_head.weight": network.head.weight,
    }
    for index, block in enumerate([*network.layers, network.mtp]):
        named |= {f"model.layers.{index}.{name}": t for name, t in _block(block).items()}
    last = f"model.layers.{len(network.layers)}."
    for name in ("enorm", "hnorm", "eh_proj", "final_layernorm"):
        named[f"{last}{name}.weight"] = getattr(network, name).weight
    return named


def _block(block: Block) -> dict[str, Tensor]:
    names = ("input_layernorm", "post_attention_layernorm")
    named = {f"{name}.weight": getattr(block, name).weight for name in names}
    for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"):
        named[f"self_attn.{name}.weight"] = getattr(block.self_attn, name).weight
    mlp = _moe(block.mlp) if isinstance(block.mlp, Moe) else _mlp(block.mlp)
    return named | {f"mlp.{name}": tensor for name, tensor in mlp.items()}


def _mlp(mlp: Mlp) -> dict[str, Tensor]:
    names = ("gate_proj", "up_proj", "down_proj")
    return {f"{name}.weight": getattr(mlp, name).weight for name in names}


def _moe(moe: Moe) -> dict[str, Tensor]:
    named = {"router.gate.weight": moe.router.weight, "expert_bias": moe.expert_bias}
    named |= {f"shared_mlp.{name}": tensor for name, tensor in _mlp(moe.shared).items()}
    count = moe.shape.experts
    for name, dim in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
        parts = getattr(moe.experts, name).weight.chunk(count, dim)
        named |= {f"experts.{e}.{name}.weight": part for e, part in enumerate(parts)}
    return named


def save_checkpoint(network: Network, folder: Path) -> None:
    """Write the shards and the index; neighbours in name order go to different shards."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach()
        .to("cpu", torch.float32 if name.endswith("expert_bias") else torch.bfloat16)
        .contiguous()
        for name, tensor in tensors_of(network).items()
    }
    files = [f"model-{i + 1:05d}-of-{SHARDS:05d}.safetensors" for i in range(SHARDS)]
    where = {name: files[i % SHARDS] for i, name in enumerate(sorted(tensors))}
    for file in files:
        part = {name: tensor for name, tensor in tensors.items() if where[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def load_checkpoint(network: Network, folder: Path) -> None:
    """Fill ``network`` with the shards' values."""
    tensors: dict[str, Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(shard)
    with torch.no_grad():
        for name, target in tensors_of(network).items():
            target.copy_(tensors[name])


def round_to_bf16(module: nn.Module) -> None:
    """Round every parameter as the checkpoint stores it; buffers (expert_bias) stay F32."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.bfloat16())

"""Two checkpoints of generated weights with Hy3's names and expert shapes, for peers_quantize.py.

S has 3 experts (0.96 GB, nearly all of it copied), L has 30 (1.98 GB, 1.13 GB of it experts); the
MTP layer's are counted. Every expert weight depends on its name alone. Rows and columns have gains,
one column in 500 is six times larger, one weight in 50,000 is 25 times larger, the matrices of an
expert differ in scale by up to a half, and the first eight rows of a layer's first expert are zero.
How far gate and up lie apart is this generator's choice, not a finding about trained weights.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.model_config import parse_config
from hy3.checkpoint.names import expected_tensors, is_routed_expert
from hy3.checkpoint.writer import ShardWriter

EXPERTS_PER_LAYER = {"S": 1, "L": 10}
SHARD_BYTES = 256 * 2**20
DEAD_ROWS = 8


def raw_config(size: str) -> dict[str, Any]:
    """The config.json of S or L: one dense layer, two with experts, one MTP layer."""
    experts = EXPERTS_PER_LAYER[size]
    return {
        "architectures": ["HYV3ForCausalLM"],
        "model_type": "hy_v3",
        "dtype": "bfloat16",
        "vocab_size": 2048,
        "hidden_size": 4096,
        "hidden_act": "silu",
        "intermediate_size": 1024,
        "num_hidden_layers": 3,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "qk_norm": True,
        "route_norm": True,
        "tie_word_embeddings": False,
        "first_k_dense_replace": 1,
        "num_experts": experts,
        "num_experts_per_tok": min(2, experts),
        "num_shared_experts": 1,
        "expert_hidden_dim": 1536,
        "moe_intermediate_size": 1536,
        "router_scaling_factor": 2.826,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.006,
        "rope_parameters": {"rope_theta": 11158840.0, "rope_type": "default"},
        "max_position_embeddings": 4096,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }


def write_checkpoint(folder: Path, size: str) -> dict[str, Any]:
    """Write config, index and shards; returns their bytes, counts and one SHA-256 of the shards."""
    folder.mkdir(parents=True)
    config = raw_config(size)
    specs = list(expected_tensors(parse_config(config)).values())
    shards = _into_shards(specs)
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    filling = _bf16_bits(_generator("filling").standard_normal(2**21, np.float32) * 0.02)
    digest = hashlib.sha256()
    for name, tensors in zip(names, shards, strict=True):
        with ShardWriter(folder / name, tensors) as writer:
            for spec in tensors:
                for chunk in _contents(spec, filling):
                    writer.write_chunk(chunk)
            digest.update(writer.finish().encode())
    places = {
        spec.name: name for name, tensors in zip(names, shards, strict=True) for spec in tensors
    }
    total = sum(spec.nbytes for spec in specs)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    experts = [spec for spec in specs if is_routed_expert(spec.name)]
    return {
        "bytes": total,
        "expert_bytes": sum(spec.nbytes for spec in experts),
        "experts": len(experts) // 3,
        "tensors": len(specs),
        "shards": len(shards),
        "sha256": digest.hexdigest(),
    }


def expert_weight(name: str, shape: tuple[int, ...]) -> NDArray[np.uint16]:
    """BF16 patterns [out, in] of the expert weight called ``name``."""
    rows, columns = shape
    random = _generator(name)
    weights = random.standard_normal(shape, np.float32)
    weights *= np.float32(0.02 * (1 + 0.5 * random.random()))
    weights *= np.exp(0.3 * random.standard_normal((rows, 1), np.float32))
    weights *= np.exp(0.2 * random.standard_normal((1, columns), np.float32))
    weights[:, random.choice(columns, columns // 500, replace=False)] *= 6
    flat = weights.reshape(-1)
    flat[random.choice(flat.size, flat.size // 50_000, replace=False)] *= 25
    if ".experts.0." in name:
        weights[:DEAD_ROWS] = 0
    return _bf16_bits(weights)


def _into_shards(specs: list[TensorSpec]) -> list[list[TensorSpec]]:
    # A layer's attention stays in one shard: llm-compressor 0.14 stops at a shard that holds the
    # k_proj of two layers but the q_proj of one ("matched twice before completing set").
    shards: list[list[TensorSpec]] = [[]]
    for spec in specs:
        full = sum(each.nbytes for each in [*shards[-1], spec]) > SHARD_BYTES
        if full and ".self_attn." not in spec.name:
            shards.append([])
        shards[-1].append(spec)
    return shards


def _contents(spec: TensorSpec, filling: NDArray[np.uint16]) -> Iterator[NDArray[np.uint8]]:
    if is_routed_expert(spec.name):
        yield expert_weight(spec.name, spec.shape).view(np.uint8).reshape(-1)
    elif spec.dtype == "F32":
        yield np.zeros(spec.nbytes, np.uint8)
    elif len(spec.shape) == 1:
        yield _bf16_bits(np.ones(spec.shape, np.float32)).view(np.uint8)
    else:
        source = np.roll(filling, zlib.crc32(spec.name.encode())).view(np.uint8)
        for start in range(0, spec.nbytes, source.size):
            yield source[: min(source.size, spec.nbytes - start)]


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def _bf16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    # Nearest, ties to even; the values are finite and far from overflow.
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

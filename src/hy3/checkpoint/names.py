"""Which tensors a ``hy_v3`` checkpoint must hold, and what class each of them belongs to.

The published ("inner") names are the only ones that every engine loads; transformers calls some
of the same tensors by other ("outer") names, known here to explain foreign files, never to write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.model_config import Hy3Config

GROUP_SIZE = 16  # weights that share one NVFP4 scale
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_ROUTED_EXPERT = re.compile(r"model\.layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj\.weight")
# Names within a layer -> class; the first match counts.
_CLASSES = [
    (re.compile(r"mlp\.experts\.\d+\.(gate|up|down)_proj\..+"), "routed_expert"),
    (re.compile(r"mlp\.shared_mlp\.(gate|up|down)_proj\..+"), "shared_expert"),
    (re.compile(r"mlp\.(gate|up|down)_proj\..+"), "dense_mlp"),
    (re.compile(r"mlp\.router\.gate\..+"), "router"),
    (re.compile(r"mlp\.expert_bias"), "expert_bias"),
    (re.compile(r"self_attn\.([qk]_norm\.weight)"), "norm"),
    (re.compile(r"self_attn\.([qkvo]_proj)\..+"), "attention"),
    (re.compile(r"self_attn\.[qkv](_scale|_cache\.scale)"), "kv_scale"),
    (re.compile(r"(input_layernorm|post_attention_layernorm)\.weight"), "norm"),
    (re.compile(r"(enorm|hnorm|final_layernorm)\.weight"), "norm"),
    (re.compile(r"eh_proj\..+"), "mtp_projection"),
]
_FUSED = (("gate_proj", "up_proj"), ("q_proj", "k_proj", "v_proj"))
# Every class of the weights that a BF16 checkpoint holds.
WEIGHT_CLASSES = (
    *("routed_expert", "shared_expert", "dense_mlp", "attention", "lm_head", "embedding"),
    *("router", "expert_bias", "norm", "mtp_projection"),
)
_OUTER_PARTS = [
    (".mlp.gate.weight", ".mlp.router.gate.weight"),
    (".mlp.gate.wg.weight", ".mlp.router.gate.weight"),
    (".mlp.e_score_correction_bias", ".mlp.expert_bias"),
    (".mlp.shared_experts.", ".mlp.shared_mlp."),
]


def expected_tensors(config: Hy3Config) -> dict[str, TensorSpec]:
    """Every tensor of the BF16 checkpoint, MTP layer included, in canonical order."""
    hidden = config.hidden_size
    specs = [TensorSpec("model.embed_tokens.weight", "BF16", (config.vocab_size, hidden))]
    for layer in range(config.num_layers + config.num_mtp_layers):
        specs += _layer_tensors(config, layer)
    specs.append(TensorSpec("model.norm.weight", "BF16", (hidden,)))
    specs.append(TensorSpec("lm_head.weight", "BF16", (config.vocab_size, hidden)))
    return {spec.name: spec for spec in specs}


def module_of(name: str) -> str:
    """The module that owns a tensor: the name without its last part."""
    return name.rpartition(".")[0]


def is_routed_expert(name: str) -> bool:
    """Whether ``name`` is the BF16 weight of a routed expert, the MTP layer's included."""
    return _ROUTED_EXPERT.fullmatch(name) is not None


def fused_with(name: str) -> tuple[str, ...]:
    """The tensors that engines put into one matrix with this one: gate and up, or q, k and v.

    They must be of one form, and under one tensor scale where the form has one.
    """
    for group in _FUSED:
        for part in group:
            if f".{part}." in name:
                others = (other for other in group if other != part)
                return tuple(name.replace(f".{part}.", f".{other}.") for other in others)
    return ()


def layer_of(name: str) -> int | None:
    """The layer index in a name, or None for the tensors outside the layers."""
    found = _LAYER.fullmatch(name)
    return int(found[1]) if found else None


def is_mtp(name: str, config: Hy3Config) -> bool:
    """Whether a tensor belongs to the MTP layer, the one after the trunk's last."""
    layer = layer_of(name)
    return layer is not None and layer >= config.num_layers


def tensor_class(name: str) -> str:
    """The class that the census counts a tensor in; ``unknown`` for names of no class."""
    if name.startswith("model.embed_tokens."):
        return "embedding"
    if name.startswith("lm_head."):
        return "lm_head"
    if name == "model.norm.weight":
        return "norm"
    found = _LAYER.fullmatch(name)
    if found:
        for pattern, kind in _CLASSES:
            if pattern.fullmatch(found[2]):
                return kind
    return "unknown"


def inner_name(name: str) -> str | None:
    """The published name of a tensor that transformers names otherwise, or None."""
    for outer, inner in _OUTER_PARTS:
        if outer in name:
            return name.replace(outer, inner)
    return None


def _layer_tensors(config: Hy3Config, layer: int) -> Iterator[TensorSpec]:
    prefix = f"model.layers.{layer}."
    hidden = config.hidden_size
    if layer >= config.num_layers:
        yield TensorSpec(prefix + "enorm.weight", "BF16", (hidden,))
        yield TensorSpec(prefix + "hnorm.weight", "BF16", (hidden,))
        yield TensorSpec(prefix + "eh_proj.weight", "BF16", (hidden, 2 * hidden))
    yield TensorSpec(prefix + "input_layernorm.weight", "BF16", (hidden,))
    yield from _attention_tensors(config, prefix + "self_attn.")
    yield TensorSpec(prefix + "post_attention_layernorm.weight", "BF16", (hidden,))
    if config.is_moe(layer):
        yield from _moe_tensors(config, prefix + "mlp.")
    else:
        yield from _mlp_tensors(prefix + "mlp.", config.intermediate_size, hidden)
    if layer >= config.num_layers:
        yield TensorSpec(prefix + "final_layernorm.weight", "BF16", (hidden,))


def _attention_tensors(config: Hy3Config, prefix: str) -> Iterator[TensorSpec]:
    hidden, head_dim = config.hidden_size, config.head_dim
    queries, keys = config.num_heads * head_dim, config.num_kv_heads * head_dim
    yield TensorSpec(prefix + "q_proj.weight", "BF16", (queries, hidden))
    yield TensorSpec(prefix + "k_proj.weight", "BF16", (keys, hidden))
    yield TensorSpec(prefix + "v_proj.weight", "BF16", (keys, hidden))
    yield TensorSpec(prefix + "o_proj.weight", "BF16", (hidden, queries))
    yield TensorSpec(prefix + "q_norm.weight", "BF16", (head_dim,))
    yield TensorSpec(prefix + "k_norm.weight", "BF16", (head_dim,))


def _moe_tensors(config: Hy3Config, prefix: str) -> Iterator[TensorSpec]:
    hidden, experts = config.hidden_size, config.num_experts
    yield TensorSpec(prefix + "router.gate.weight", "BF16", (experts, hidden))
    yield TensorSpec(prefix + "expert_bias", "F32", (experts,))
    for expert in range(experts):
        yield from _mlp_tensors(f"{prefix}experts.{expert}.", config.expert_size, hidden)
    if config.num_shared_experts:
        yield from _mlp_tensors(prefix + "shared_mlp.", config.shared_expert_size, hidden)


def _mlp_tensors(prefix: str, width: int, hidden: int) -> Iterator[TensorSpec]:
    yield TensorSpec(prefix + "gate_proj.weight", "BF16", (width, hidden))
    yield TensorSpec(prefix + "up_proj.weight", "BF16", (width, hidden))
    yield TensorSpec(prefix + "down_proj.weight", "BF16", (hidden, width))

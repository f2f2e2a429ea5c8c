"""``Hy3Config``: the keys of ``config.json`` that decide shapes and arithmetic, read strictly.

Not a schema of the whole file: unknown keys are left alone because the file is always copied and
edited as JSON (``transformers`` drops keys that vLLM needs). A missing key that an engine needs is
an error here, because the engines fail late or compute silently wrong without it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hy3.checkpoint.json_file import read_json_object
from hy3.checkpoint.strict_json import shown
from hy3.errors import InputError

CONFIG_NAME = "config.json"
MODEL_TYPE = "hy_v3"
# Seven times Hy3's. Every expert becomes names in memory, so a number in the file must not do it.
_MAX_EXPERTS = 100_000


@dataclass(frozen=True)
class Hy3Config:
    """Shapes and constants of one ``hy_v3`` model; counts are elements, not bytes."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int  # width of the dense layers
    num_layers: int  # trunk layers; the MTP layer has index num_layers
    num_mtp_layers: int  # 0 or 1
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_dense_layers: int  # leading layers without experts
    num_experts: int
    experts_per_token: int
    num_shared_experts: int
    expert_size: int  # width of one routed expert
    router_scale: float
    rms_norm_eps: float
    rope_theta: float
    max_positions: int
    lm_head_fp32: bool
    eos_token_ids: tuple[int, ...]

    @property
    def shared_expert_size(self) -> int:
        """Width of the shared expert's MLP."""
        return self.expert_size * self.num_shared_experts

    @property
    def num_cached_layers(self) -> int:
        """Layers that own a KV cache: the trunk's and the MTP layer's."""
        return self.num_layers + self.num_mtp_layers

    def is_moe(self, layer: int) -> bool:
        """Whether ``layer`` (the MTP layer included) has routed experts."""
        return layer >= self.num_dense_layers


def load_config(folder: Path) -> Hy3Config:
    """Read ``folder/config.json``; raises InputError naming the key that is wrong."""
    path = folder / CONFIG_NAME
    return parse_config(read_json_object(path), where=str(path))


def parse_config(raw: dict[str, Any], where: str = CONFIG_NAME) -> Hy3Config:
    """Check and convert the keys; source: vLLM 0.33, SGLang 0.5.23 and transformers 5.17."""
    keys = _Keys(raw, where)
    if raw.get("model_type") != MODEL_TYPE:
        raise InputError(
            f"model_type is {shown(raw.get('model_type'))}, not 'hy_v3'",
            hint="hy3 handles tencent/Hy3 and its sisters of the same architecture",
            where=where,
        )
    for key, wanted in (("qk_norm", True), ("route_norm", True), ("tie_word_embeddings", False)):
        if raw.get(key) is not wanted:
            raise InputError(
                f"{key} must be {json.dumps(wanted)}, found {shown(raw.get(key))}",
                hint="the engines compute something else without it; restore the original config",
                where=where,
            )
    expert_size = keys.count("expert_hidden_dim")
    if raw.get("moe_intermediate_size", expert_size) != expert_size:
        raise InputError(
            "expert_hidden_dim and moe_intermediate_size differ",
            hint="vLLM reads the first, SGLang and transformers the second: make them equal",
            where=where,
        )
    rope = raw.get("rope_parameters")
    rope = rope if isinstance(rope, dict) else {}
    if rope.get("rope_type", "default") != "default":
        raise InputError(
            f"rope_type {shown(rope.get('rope_type'))} is not supported",
            hint="Hy3 uses the default rotary embedding",
            where=where,
        )
    theta = _Keys(rope, where, prefix="rope_parameters.").number("rope_theta")
    config = Hy3Config(
        vocab_size=keys.count("vocab_size"),
        hidden_size=keys.count("hidden_size"),
        intermediate_size=keys.count("intermediate_size"),
        num_layers=keys.count("num_hidden_layers"),
        num_mtp_layers=keys.count("num_nextn_predict_layers", default=0),
        num_heads=keys.count("num_attention_heads"),
        num_kv_heads=keys.count("num_key_value_heads"),
        head_dim=keys.count("head_dim"),
        num_dense_layers=keys.count("first_k_dense_replace"),
        num_experts=keys.count("num_experts"),
        experts_per_token=keys.count("num_experts_per_tok"),
        num_shared_experts=keys.count("num_shared_experts"),
        expert_size=expert_size,
        router_scale=keys.number("router_scaling_factor"),
        rms_norm_eps=keys.number("rms_norm_eps"),
        rope_theta=theta,
        max_positions=keys.count("max_position_embeddings"),
        lm_head_fp32=bool(raw.get("enable_lm_head_fp32", False)),
        eos_token_ids=keys.token_ids("eos_token_id"),
    )
    _check_consistency(config, where)
    return config


def _check_consistency(config: Hy3Config, where: str) -> None:
    problem = ""
    if config.num_heads % config.num_kv_heads:
        problem = "num_attention_heads is not a multiple of num_key_value_heads"
    elif config.head_dim % 2:
        problem = "head_dim is odd, so rotary pairs do not fit"
    elif config.experts_per_token > config.num_experts:
        problem = "num_experts_per_tok exceeds num_experts"
    elif config.num_mtp_layers > 1:
        problem = "num_nextn_predict_layers above 1 is unknown for this architecture"
    elif config.num_dense_layers > config.num_layers:
        problem = "first_k_dense_replace exceeds num_hidden_layers"
    elif config.num_cached_layers * (config.num_experts + 1) > _MAX_EXPERTS:
        problem = f"num_hidden_layers times num_experts exceeds {_MAX_EXPERTS}"
    if problem:
        raise InputError(problem, hint="restore the original config.json", where=where)


class _Keys:
    """Typed access to a JSON object, each failure naming the key."""

    def __init__(self, raw: dict[str, Any], where: str, prefix: str = "") -> None:
        self.raw, self.where, self.prefix = raw, where, prefix

    def _fail(self, key: str, wanted: str) -> InputError:
        found = shown(self.raw[key]) if key in self.raw else "nothing"
        return InputError(
            f"{self.prefix}{key} must be {wanted}, found {found}",
            hint="restore the original config.json; transformers' save_pretrained drops such keys",
            where=self.where,
        )

    def count(self, key: str, default: int | None = None) -> int:
        """A non-negative integer; zero only where a default of zero exists."""
        value = self.raw.get(key, default)
        allowed_zero = default == 0 or key == "first_k_dense_replace"
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._fail(key, "an integer")
        if value < 0 or value > 2**40 or (value == 0 and not allowed_zero):
            raise self._fail(key, "a positive integer")
        return value

    def number(self, key: str) -> float:
        """A finite positive number."""
        value = self.raw.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._fail(key, "a number")
        if not 0 < value < 1e30:
            raise self._fail(key, "a positive number")
        return float(value)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them; missing means none."""
        value = self.raw.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
            raise self._fail(key, "a token id or a list of token ids")
        return tuple(ids)

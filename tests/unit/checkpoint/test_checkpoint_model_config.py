"""``Hy3Config``: the published files are read whole, and each broken key is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hy3.checkpoint.json_file import read_json_object
from hy3.checkpoint.model_config import load_config, parse_config
from hy3.errors import InputError
from support.real_models import HY3


def test_the_published_config() -> None:
    config = parse_config(HY3)
    assert (config.num_layers, config.num_mtp_layers, config.num_cached_layers) == (80, 1, 81)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (64, 8, 128)
    assert (config.num_experts, config.experts_per_token, config.expert_size) == (192, 8, 1536)
    assert config.shared_expert_size == 1536
    assert config.rope_theta == 11158840.0
    assert config.router_scale == 2.826
    assert config.lm_head_fp32
    assert config.eos_token_ids == (120025,)
    assert [config.is_moe(layer) for layer in (0, 1, 80)] == [False, True, True]


def test_a_sister_without_mtp_and_with_several_stop_tokens() -> None:
    raw = {**HY3, "eos_token_id": [7, 8]}
    del raw["num_nextn_predict_layers"]
    config = parse_config(raw)
    assert config.num_cached_layers == config.num_layers == 80
    assert config.eos_token_ids == (7, 8)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "llama"}, "model_type"),
        ({"qk_norm": False}, "qk_norm"),
        ({"route_norm": None}, "route_norm"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_experts": True}, "num_experts"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"moe_intermediate_size": 768}, "moe_intermediate_size"),
        ({"num_key_value_heads": 7}, "num_key_value_heads"),
        ({"head_dim": 127}, "head_dim"),
        ({"num_experts_per_tok": 193}, "num_experts_per_tok"),
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers"),
        ({"first_k_dense_replace": 81}, "first_k_dense_replace"),
        ({"num_hidden_layers": 2**40}, "num_hidden_layers times num_experts"),
        ({"num_experts": 2**40}, "num_hidden_layers times num_experts"),
        ({"vocab_size": 10**4000}, "vocab_size"),
        ({"rms_norm_eps": 10**4000}, "rms_norm_eps"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "yarn"),
        ({"rope_parameters": None}, "rope_theta"),
        ({"eos_token_id": ["x"]}, "eos_token_id"),
    ],
)
def test_each_broken_key_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_config({**HY3, **change}, where="m/config.json")
    assert named in caught.value.message
    assert caught.value.where == "m/config.json"
    assert caught.value.hint


@pytest.mark.parametrize("key", ["expert_hidden_dim", "first_k_dense_replace", "qk_norm"])
def test_keys_that_save_pretrained_drops_are_missed(key: str) -> None:
    raw = {name: value for name, value in HY3.items() if name != key}
    with pytest.raises(InputError) as caught:
        parse_config(raw)
    assert key in caught.value.message


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "not an object"),
        (b"\xff\xfe", "not valid UTF-8"),
        (rb'{"a": {"b": ["\ud800"]}}', "surrogate"),
    ],
)
def test_unreadable_files(tmp_path: Path, content: bytes, part: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_config(tmp_path)
    assert part in caught.value.message
    with pytest.raises(InputError) as caught:
        load_config(tmp_path / "nowhere")
    assert "cannot be read" in caught.value.message


def test_a_real_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HY3), encoding="utf-8")
    assert load_config(tmp_path) == parse_config(HY3)


def test_escaped_pairs_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(rb'{"a": "\ud83d\ude00 \u00fc"}')
    assert read_json_object(tmp_path / "a.json") == {"a": "\U0001f600 \u00fc"}

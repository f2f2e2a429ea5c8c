"""``quant_method: fp8``: Hy3-FP8's layout and blocks pass; a fault for each rule is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hy3.quantize.verdict import Verdict
from hy3.quantize.verify import verify
from support.foreign_files import fp8_block_inv, fp8_tensor, write_foreign
from support.quantized import write_index
from support.scripted import make_random

ENGINES = ("scheme", "vllm_matching", "sglang_matching")
LINEARS = r"_proj$(?<!eh_proj)"
Q, OUT, GATE = "self_attn.q_proj", "self_attn.o_proj", "mlp.experts.0.gate_proj"
LAYER = "model.layers.1."
STATIC = {
    "quant_method": "fp8",
    "activation_scheme": "static",
    "ignored_layers": ["lm_head", "model.embed_tokens"],
    "kv_cache_scheme": "static",
}
DYNAMIC = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
Tensors = dict[str, torch.Tensor]


def write(tmp: Path, encode: Callable, config: dict, **dims: Any) -> Path:
    dims = {"hidden_size": 128, "num_experts": 2, "intermediate_size": 128} | dims
    original = make_random(tmp / "original", seed=3, shards=1, **dims)
    write_foreign(original, tmp / "foreign", tmp / "decoded", encode, LINEARS, config)
    return tmp / "foreign"


@pytest.fixture(scope="module")
def per_tensor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("tensor"), fp8_tensor, STATIC)


@pytest.fixture(scope="module")
def in_blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dims = {"num_key_value_heads": 4, "expert_hidden_dim": 128}
    return write(tmp_path_factory.mktemp("blocks"), fp8_block_inv, DYNAMIC, **dims)


def edited(
    source: Path,
    folder: Path,
    config: Callable[[dict], object] = lambda _: None,
    tensors: Callable[[Tensors], object] = lambda _: None,
) -> Verdict:
    shutil.copytree(source, folder)
    raw = json.loads((folder / "config.json").read_text())
    config(raw["quantization_config"])
    (folder / "config.json").write_text(json.dumps(raw))
    (path,) = folder.glob("*.safetensors")
    stored = load_file(path)
    tensors(stored)
    save_file(stored, path)
    write_index(folder)
    return verify(folder)


def failures(verdict: Verdict) -> dict[str, tuple[str, ...]]:
    return {each.id: each.tensors for each in verdict.checks if each.status == "fail"}


def test_both_layouts_pass(per_tensor: Path, in_blocks: Path) -> None:
    for folder in (per_tensor, in_blocks):
        verdict = verify(folder)
        status = {check.id: check.status for check in verdict.checks}
        assert {identity: status[identity] for identity in ENGINES} == dict.fromkeys(
            ENGINES, "pass"
        )
        assert not failures(verdict)


@pytest.mark.parametrize(
    ("names", "engines"),
    [
        ([f"{LAYER}{OUT}"], {"vllm_matching", "sglang_matching"}),
        ([f"{LAYER}self_attn.qkv_proj"], {"vllm_matching"}),  # SGLang looks for the shards
        (["self_attn"], {"sglang_matching"}),  # vLLM compares whole names only
        ([f"layers.1.{OUT}"], {"sglang_matching"}),  # SGLang adds "model." itself
        ([f"{LAYER}mlp.experts"], {"vllm_matching", "sglang_matching"}),
        ([f"{LAYER}mlp"], {"sglang_matching"}),
        ([f"{LAYER}mlp.gate"], set()),  # the router, which is never FP8
    ],
)
def test_an_ignored_layer_that_is_fp8(
    per_tensor: Path, tmp_path: Path, names: list[str], engines: set[str]
) -> None:
    verdict = edited(
        per_tensor, tmp_path / "f", lambda value: value["ignored_layers"].extend(names)
    )
    assert set(failures(verdict)) == engines
    for found in failures(verdict).values():
        assert found and all("is fp8-tensor but is taken for unquantized" in each for each in found)


def test_some_shards_of_a_fused_linear(per_tensor: Path, tmp_path: Path) -> None:
    verdict = edited(
        per_tensor, tmp_path / "f", lambda value: value["ignored_layers"].append(f"{LAYER}{Q}")
    )
    assert set(failures(verdict)) == {"vllm_matching", "sglang_matching"}
    for found in failures(verdict).values():
        assert any("some but not all shards" in each for each in found)


def test_a_bf16_linear_that_the_list_leaves_out(per_tensor: Path, tmp_path: Path) -> None:
    def plain(stored: Tensors) -> None:
        weight, scale = stored[f"{LAYER}{OUT}.weight"], stored.pop(f"{LAYER}{OUT}.weight_scale")
        stored.pop(f"{LAYER}{OUT}.input_scale")
        stored[f"{LAYER}{OUT}.weight"] = (weight.float() * scale).bfloat16()

    verdict = edited(per_tensor, tmp_path / "f", tensors=plain)
    assert set(failures(verdict)) == {"vllm_matching", "sglang_matching"}
    named = edited(
        per_tensor,
        tmp_path / "named",
        lambda value: value.update(modules_to_not_convert=[f"{LAYER}{OUT}"], ignored_layers=[]),
        plain,
    )
    assert not failures(named)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"activation_scheme": "sometimes"}, "not static or dynamic"),
        ({"weight_block_size": [128, 128]}, "needs the activation_scheme dynamic"),
        ({"weight_block_size": [128]}, "not two numbers"),
    ],
)
def test_a_config_that_the_engines_refuse(
    per_tensor: Path, tmp_path: Path, change: dict, reason: str
) -> None:
    verdict = edited(per_tensor, tmp_path / "f", lambda value: value.update(change))
    assert set(failures(verdict)) == set(ENGINES)
    assert all(reason in each.detail for each in verdict.checks if each.id in ENGINES)


def test_scales_of_activations(per_tensor: Path, in_blocks: Path, tmp_path: Path) -> None:
    scale = f"{LAYER}{GATE}.input_scale"
    missing = edited(per_tensor, tmp_path / "a", tensors=lambda stored: stored.pop(scale))
    assert failures(missing) == {"scheme": (f"{scale} is missing",)}
    dynamic = edited(
        per_tensor, tmp_path / "b", lambda value: value.update(activation_scheme="dynamic")
    )
    assert set(failures(dynamic)) == {"scheme"}
    stored = edited(
        in_blocks, tmp_path / "c", tensors=lambda all: all.update({scale: torch.ones(1)})
    )
    assert failures(stored) == {"scheme": (f"{scale} is stored under dynamic activations",)}


def test_names_sizes_and_kinds_of_scales(in_blocks: Path, per_tensor: Path, tmp_path: Path) -> None:
    def renamed(stored: Tensors) -> None:
        for name in [name for name in stored if name.endswith("_scale_inv")]:
            stored[name.removesuffix("_inv")] = stored.pop(name)

    other_name = edited(in_blocks, tmp_path / "a", tensors=renamed)
    other_size = edited(
        in_blocks, tmp_path / "b", lambda value: value.update(weight_block_size=[64, 64])
    )
    no_size = edited(in_blocks, tmp_path / "c", lambda value: value.pop("weight_block_size"))

    def by_row(stored: Tensors) -> None:
        rows = stored[f"{LAYER}{OUT}.weight"].shape[0]
        stored[f"{LAYER}{OUT}.weight_scale"] = torch.ones(rows, 1)

    rows = edited(per_tensor, tmp_path / "d", tensors=by_row)
    for verdict in (other_name, other_size, no_size, rows):
        assert set(failures(verdict)) == {"vllm_matching", "sglang_matching"}


def test_fused_parts_that_end_within_a_block(tmp_path: Path) -> None:
    folder = write(tmp_path, fp8_block_inv, DYNAMIC)  # experts of 32 rows, k of 64
    found = failures(verify(folder))
    assert set(found) == {"scheme"}
    assert any(
        f"{LAYER}{GATE}.weight ends within a block: 32 rows" in each for each in found["scheme"]
    )


def test_kv_scales_per_head_are_a_warning(per_tensor: Path, tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.k_cache.scale"

    def with_scales(stored: Tensors) -> None:
        stored[name] = torch.ones(2)

    verdict = edited(per_tensor, tmp_path / "f", tensors=with_scales)
    (scheme,) = [check for check in verdict.checks if check.id == "scheme"]
    assert scheme.status == "warn" and scheme.tensors == (name,)

"""The census of real headers and of generated checkpoints with planted gaps."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from hy3.checkpoint.census import take_census
from hy3.checkpoint.forms import NVFP4, stored_specs
from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.index import INDEX_NAME, open_checkpoint
from hy3.checkpoint.model_config import load_config
from hy3.checkpoint.names import expected_tensors
from hy3.checkpoint.writer import ShardWriter
from support.real_models import HY3
from support.sparse import write_sparse

SMALL = {
    **HY3,
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "expert_hidden_dim": 16,
    "moe_intermediate_size": 16,
}


@pytest.fixture(scope="module")
def hy3(tmp_path_factory):
    return write_sparse(tmp_path_factory.mktemp("hy3"), HY3)


@pytest.fixture(scope="module")
def hy3_packed(tmp_path_factory):
    return write_sparse(tmp_path_factory.mktemp("hy3p"), HY3, packed=True)


def census_of(folder):
    return take_census(open_checkpoint(folder), load_config(folder))


def test_hy3_headers(hy3):
    checkpoint = open_checkpoint(hy3)
    assert (len(checkpoint.headers), len(checkpoint.tensors)) == (99, 47_138)
    assert checkpoint.total_bytes == 597_572_342_272 == checkpoint.declared_bytes
    assert checkpoint.tensors["model.layers.0.mlp.up_proj.weight"].startswith("model-00090-")
    assert checkpoint.tensors["model.layers.80.eh_proj.weight"].startswith("model-00018-")
    pair = [f"model.layers.7.mlp.experts.3.{half}_proj.weight" for half in ("gate", "up")]
    assert checkpoint.tensors[pair[0]] != checkpoint.tensors[pair[1]]
    used = sum(os.stat(hy3 / name).st_blocks * 512 for name in checkpoint.headers)
    assert used < 100_000_000  # of 597 GB
    census = take_census(checkpoint, load_config(hy3))
    assert census.scheme == "bf16" and not census.missing and not census.unexpected
    assert census.weight_count == 298_786_140_416 + 15_360
    rows = {(row.name, row.dtype): row for row in census.classes}
    assert rows["routed_expert", "BF16"].nbytes == 2 * 289_910_292_480
    assert rows["expert_bias", "F32"].tensors == 80
    assert census.mtp.tensors == 593 and census.mtp.experts == "bf16"


def test_hy3_packed_headers(hy3_packed):
    checkpoint = open_checkpoint(hy3_packed)
    assert len(checkpoint.tensors) == 139_298
    assert checkpoint.total_bytes == 180_826_481_152
    census = take_census(checkpoint, load_config(hy3_packed))
    assert census.scheme == "nvfp4-w4a16"
    assert not census.missing and not census.unexpected and not census.mismatched
    assert census.weight_count == 298_786_140_416 + 15_360
    assert census.mtp.nbytes == 2_295_901_696 and census.mtp.experts == "nvfp4"


def store(folder, specs):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SMALL))
    ordered = sorted(specs, key=lambda spec: -{"F32": 4, "BF16": 2}.get(spec.dtype, 1))
    with ShardWriter(folder / "model.safetensors", ordered) as shard:
        for spec in ordered:
            shard.write(spec.name, np.zeros(spec.nbytes, np.uint8))
        shard.finish()
    return census_of(folder)


@pytest.fixture
def specs(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    return expected_tensors(load_config(tmp_path))


GATE = "model.layers.1.mlp.experts.0.gate_proj.weight"


def test_missing_and_unexpected(tmp_path, specs):
    del specs["model.layers.2.final_layernorm.weight"], specs[GATE]
    specs["extra"] = TensorSpec("extra", "U8", (1,))
    census = store(tmp_path, specs.values())
    assert census.missing == (GATE, "model.layers.2.final_layernorm.weight")
    assert census.unexpected == ("extra",)


def test_a_part_of_a_packed_weight_is_missing(tmp_path, specs):
    packed = stored_specs(specs.pop(GATE), NVFP4)
    for absent in range(3):
        kept = [part for index, part in enumerate(packed) if index != absent]
        census = store(tmp_path, [*specs.values(), *kept])
        if absent == 0:
            assert census.missing == (packed[0].name,)
        assert packed[absent].name in census.missing and not census.unexpected


def test_wrong_dtype_and_shape(tmp_path, specs):
    bias, norm = "model.layers.1.mlp.expert_bias", "model.norm.weight"
    specs[bias] = TensorSpec(bias, "BF16", (4,))
    specs[norm] = TensorSpec(norm, "BF16", (16,))
    census = store(tmp_path, specs.values())
    found = {each.name: (each.expected, each.found) for each in census.mismatched}
    assert found == {bias: ("F32 [4]", "BF16 [4]"), norm: ("BF16 [32]", "BF16 [16]")}


def test_kv_scales_are_welcome_and_outer_names_are_not(tmp_path, specs):
    scale = "model.layers.0.self_attn.k_scale"
    specs[scale] = TensorSpec(scale, "F32", (1,))
    outer = "model.layers.1.mlp.shared_experts.up_proj.weight"
    specs[outer] = TensorSpec(outer, "BF16", (16, 32))
    assert store(tmp_path, specs.values()).unexpected == (outer,)


def test_both_forms_of_one_weight(tmp_path, specs):
    census = store(tmp_path, [*specs.values(), *stored_specs(specs[GATE], NVFP4)])
    assert census.unexpected == (GATE,) and not census.missing


def modelopt(weight: TensorSpec) -> list[TensorSpec]:
    module, (rows, columns) = weight.name.removesuffix(".weight"), weight.shape
    return [
        TensorSpec(weight.name, "U8", (rows, columns // 2)),
        TensorSpec(f"{module}.weight_scale", "F8_E4M3", (rows, columns // 16)),
        TensorSpec(f"{module}.weight_scale_2", "F32", ()),
        TensorSpec(f"{module}.input_scale", "F32", ()),
    ]


def test_foreign_schemes(tmp_path, specs):
    census = store(
        tmp_path / "a", [*[s for s in specs.values() if s.name != GATE], *modelopt(specs[GATE])]
    )
    assert census.scheme == "modelopt-nvfp4-w4a4"
    assert not census.missing and not census.unexpected and not census.mismatched
    name = "model.layers.0.self_attn.o_proj.weight"
    specs[name] = TensorSpec(name, "F8_E4M3", specs[name].shape)
    census = store(tmp_path / "b", specs.values())
    assert census.scheme == "fp8" and census.missing == (name + "_scale",)


def test_no_mtp_layer(tmp_path, specs):
    raw = {key: value for key, value in SMALL.items() if key != "num_nextn_predict_layers"}
    write_sparse(tmp_path, raw, shards=3)
    census = census_of(tmp_path)
    assert census.mtp is None and not census.missing
    assert (tmp_path / INDEX_NAME).exists()

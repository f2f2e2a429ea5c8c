"""Plans, on small checkpoints and on headers of Hy3's own size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hy3.checkpoint.file_hash import FileHash
from hy3.errors import InputError
from hy3.quantize.output_folder import OutputFolder
from hy3.quantize.resume import FinishedShard, stamp_of
from hy3.quantize.stats import WeightStats
from support.quantizing import plan_of
from support.real_models import HY3
from support.recipes import written_specs
from support.scripted import make_random
from support.sparse import write_sparse


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_random(tmp_path / "model", seed=1)


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder: Path, name: str, value: torch.Tensor | None) -> None:
    """Replace, add or drop one tensor in the first shard that holds it, and in the index."""
    index_path = folder / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    shard = folder / index["weight_map"].get(name, min(index["weight_map"].values()))
    tensors = load_file(shard)
    tensors.pop(name, None)
    index["weight_map"].pop(name, None)
    if value is not None:
        tensors[name] = value
        index["weight_map"][name] = shard.name
    save_file(tensors, shard, metadata={"format": "pt"})
    index_path.write_text(json.dumps(index))


def test_outputs_are_the_expected_tensors(source: Path) -> None:
    plan = plan_of(source)
    outputs = {spec.name: spec for step in plan.steps() for spec in step.outputs}
    assert outputs == written_specs(plan.config)
    kept = plan_of(source, mtp="bf16")
    outputs = {spec.name: spec for step in kept.steps() for spec in step.outputs}
    assert outputs == written_specs(kept.config, mtp="bf16")


def test_lines_add_up(source: Path) -> None:
    plan = plan_of(source)
    lines = plan.lines()
    assert sum(line.source_bytes for line in lines) == plan.source_bytes
    assert sum(line.output_bytes for line in lines) == plan.output_bytes
    assert lines[0].label == "routed_expert" and lines[0].format == "NVFP4"
    # 4 bits a weight, 8 bits a group of 16, 32 bits a tensor
    experts = lines[0]
    assert experts.output_bytes == experts.source_bytes * 9 // 32 + 4 * experts.tensors


def test_mtp_is_normalised_without_an_mtp_layer(tmp_path: Path) -> None:
    folder = make_random(tmp_path / "model", num_nextn_predict_layers=0)
    assert plan_of(folder, mtp="bf16").parameters.mtp == "same"


def test_a_missing_tensor_is_refused(source: Path) -> None:
    name = "model.layers.3.eh_proj.weight"
    edit_tensors(source, name, None)
    with pytest.raises(InputError, match=f"1 tensors are missing, the first '{name}'"):
        plan_of(source)


def test_an_unexpected_tensor_is_refused(source: Path) -> None:
    edit_tensors(source, "model.layers.0.mystery", torch.zeros(4))
    with pytest.raises(InputError, match="1 tensors are unexpected"):
        plan_of(source)


def test_a_wrong_dtype_is_refused(source: Path) -> None:
    edit_tensors(source, "model.layers.1.mlp.expert_bias", torch.zeros(8, dtype=torch.bfloat16))
    with pytest.raises(InputError, match="another dtype or shape"):
        plan_of(source)


def test_a_quantized_checkpoint_is_no_source(source: Path) -> None:
    name = "model.layers.1.mlp.experts.0.down_proj.weight"
    edit_tensors(source, name, torch.zeros(64, 16, dtype=torch.uint8))
    with pytest.raises(InputError, match="not BF16 alone"):
        plan_of(source)


def test_a_shape_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = make_random(tmp_path / "model", expert_hidden_dim=24, moe_intermediate_size=24)
    with pytest.raises(InputError, match=r"down_proj.* does not fit NVFP4"):
        plan_of(folder)


def test_the_plan_and_resumption_of_hy3_itself(tmp_path: Path) -> None:
    """Real headers, 47,138 tensors in 99 shards; the sums are those of published NVFP4 files."""
    plan = plan_of(write_sparse(tmp_path / "hy3", HY3))
    assert len(plan.shards) == 99 and sum(1 for _ in plan.steps()) == 47_138
    assert sum(len(step.outputs) for step in plan.steps()) == 139_298
    assert plan.source_bytes == 597_572_342_272
    assert plan.output_bytes == 180_826_481_152
    out = tmp_path / "out"
    out.mkdir()
    names = list(plan.shards)[:98]
    some = FileHash("0" * 64, 1)
    with OutputFolder(out, plan) as folder:
        assert folder.resume() == {}
        for name in names:
            (out / name).write_bytes(b"x")
            stats = {"routed_expert@1": WeightStats(0.1, 0.2, 0.3)}
            folder.record(name, FinishedShard(some, some, stamp_of(out / name), stats))
    (out / names[5]).write_bytes(b"xy")
    with OutputFolder(out, plan) as folder:
        assert set(folder.resume()) == set(names) - {names[5]}

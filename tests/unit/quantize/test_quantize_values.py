"""Weights that are not bell-shaped: NaN, infinity, zeros, an enormous outlier, subnormals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hy3.checkpoint.index import open_checkpoint
from hy3.checkpoint.model_config import load_config
from hy3.checkpoint.names import expected_tensors, is_routed_expert
from hy3.errors import InputError
from hy3.nvfp4.scales import tensor_scale
from hy3.nvfp4.tensor import quantize as quantize_tensor
from hy3.quantize.verify import verify
from support.foreign_decoder import decode
from support.quantizing import run, tree
from support.scripted import make_random

EXPERT = "model.layers.1.mlp.experts.2."
UP, GATE, DOWN = (f"{EXPERT}{part}_proj.weight" for part in ("up", "gate", "down"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_random(tmp_path / "source", seed=3, shards=2, num_experts=4)


def plant(source: Path, name: str, values: torch.Tensor) -> None:
    """Give one tensor other values."""
    path = open_checkpoint(source).path(name)
    tensors = load_file(path)
    tensors[name] = values.to(tensors[name].dtype)
    save_file(tensors, path, metadata={"format": "pt"})


def weight(source: Path, name: str) -> torch.Tensor:
    return load_file(open_checkpoint(source).path(name))[name]


def stored(out: Path, name: str) -> dict[str, torch.Tensor]:
    """What is stored for a weight, by the last part of each name."""
    tensors = load_file(open_checkpoint(out).path(name + "_packed"))
    parts = ("weight_packed", "weight_scale", "weight_global_scale")
    return {part: tensors[name.removesuffix("weight") + part] for part in parts}


def check(source: Path, out: Path, name: str, *sharing: str) -> torch.Tensor:
    """The oracle's bytes under the joint scale, verified; returns what it decodes to."""
    run(source, out)
    assert verify(out, source).ok
    largest = max(float(weight(source, each).abs().max()) for each in (name, *sharing))
    wanted = quantize_tensor(weight(source, name), tensor_scale(largest), "exact")
    found = stored(out, name)
    assert torch.equal(found["weight_packed"], wanted.packed)
    assert torch.equal(found["weight_scale"].view(torch.uint8), wanted.scales)
    assert torch.isfinite(found["weight_global_scale"]).all()
    divisor = float(found["weight_global_scale"])
    decoded = decode(wanted.packed, wanted.scales, divisor)
    assert torch.isfinite(decoded).all()
    return decoded


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ({(3, 5): 0x7FC0}, "1 NaN and 0 infinite values"),
        ({(0, 0): 0xFF80, (31, 63): 0x7F80, (1, 1): 0xFFFF}, "1 NaN and 2 infinite values"),
    ],
)
@pytest.mark.parametrize("name", [UP, "model.layers.2.self_attn.q_proj.weight"])
def test_nan_and_infinity_are_counted_and_the_tensor_named(
    source: Path, tmp_path: Path, name: str, patterns: dict[tuple[int, int], int], message: str
) -> None:
    values = weight(source, name)
    for place, pattern in patterns.items():
        values.view(torch.int16)[place] = int(np.uint16(pattern).view(np.int16))
    plant(source, name, values)
    with pytest.raises(InputError, match=message) as caught:
        run(source, tmp_path / "out")
    assert f"tensor {name!r}" in caught.value.where
    assert not (tmp_path / "out" / "hy3_manifest.json").exists()


def test_nan_in_an_fp32_tensor(source: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.expert_bias"
    values = weight(source, name)
    values[1] = float("nan")
    plant(source, name, values)
    with pytest.raises(InputError, match="1 NaN and 0 infinite values"):
        run(source, tmp_path / "out")


def with_nan(source: Path, name: str) -> torch.Tensor:
    values = weight(source, name)
    values.flatten()[:2] = torch.tensor([float("nan"), float("-inf")])
    plant(source, name, values)
    return values


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def hy3(*arguments: str | Path) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, "-m", "hy3", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, json.loads(done.stdout), done.stderr


def test_what_holds_nan_can_be_kept(source: Path, tmp_path: Path) -> None:
    """All experts of the layer stay BF16, for engines choose by layer; both engines' rules hold."""
    out, attention = tmp_path / "out", "model.layers.2.self_attn.q_proj.weight"
    kept = {name: with_nan(source, name) for name in (UP, attention)}
    code, _, said = hy3("quantize", source, out, "--keep-nonfinite")
    assert code == 0, said
    for name in kept:
        assert f"{name} holds 1 NaN and 1 infinite values" in said
    before, after = open_checkpoint(source), open_checkpoint(out)
    for name, spec in expected_tensors(load_config(source)).items():
        if spec.name.startswith("model.layers.1.") or not is_routed_expert(name):
            assert same_bits(weight(out, name), weight(source, name))
        else:
            assert name not in after.tensors and f"{name}_packed" in after.tensors
    assert before.tensors.keys() - after.tensors.keys()
    code, verdict, _ = hy3("verify", out, "--source", source)
    assert code == 0
    statuses = {check["id"]: check["status"] for check in verdict["checks"]}
    assert statuses.pop("finite") == "warn" and set(statuses.values()) == {"pass"}
    warning = next(check for check in verdict["checks"] if check["id"] == "finite")
    assert set(warning["tensors"]) == kept.keys()
    assert UP in (out / "README.md").read_text()


def test_nan_that_the_manifest_does_not_name_fails(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(source, out)
    with_nan(out, "model.layers.2.self_attn.q_proj.weight")
    failed = {check.id for check in verify(out).checks if check.status == "fail"}
    assert failed == {"finite", "hashes"}


def test_keeping_changes_nothing_where_all_is_finite(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "plain")
    code, _, said = hy3("quantize", source, tmp_path / "out", "--keep-nonfinite")
    assert code == 0, said
    assert tree(tmp_path / "out") == tree(tmp_path / "plain")


def test_an_expert_of_zeros(source: Path, tmp_path: Path) -> None:
    """Its scales are usable numbers, and it decodes to zeros; also when its partner is not zero."""
    for name in (GATE, UP, DOWN):
        plant(source, name, torch.zeros_like(weight(source, name)))
    assert not check(source, tmp_path / "out", DOWN).any()
    assert stored(tmp_path / "out", DOWN)["weight_global_scale"].tolist() == [1.0]
    assert (stored(tmp_path / "out", UP)["weight_scale"].view(torch.uint8) == 0x20).all()
    plant(source, GATE, torch.ones_like(weight(source, GATE)))
    assert not check(source, tmp_path / "other", UP, GATE).any()


def test_one_enormous_outlier(source: Path, tmp_path: Path) -> None:
    """It is kept within a step; whatever lies far below it in its tensor becomes zero."""
    values = weight(source, DOWN)
    values[2, 3] = 2.0**100
    plant(source, DOWN, values)
    decoded = check(source, tmp_path / "out", DOWN)
    assert float(decoded[2, 3]) == pytest.approx(2.0**100, rel=1 / 12)
    decoded[2, 3] = 0
    assert not decoded.any()


def test_subnormal_weights(source: Path, tmp_path: Path) -> None:
    """t is never below 2^-126, so that steps among subnormal weights are coarse, and no more."""
    smallest = torch.tensor([1, 2, 64, 127], dtype=torch.int16).view(torch.bfloat16)
    plant(source, DOWN, smallest.repeat(weight(source, DOWN).numel() // 4).reshape(64, 32))
    check(source, tmp_path / "out", DOWN)
    mixed = weight(source, DOWN)
    mixed[0] = 2.0**-100
    plant(source, DOWN, mixed)
    decoded = check(source, tmp_path / "other", DOWN)
    assert float(decoded[0, 0]) == pytest.approx(2.0**-100, rel=1 / 12)
    assert not decoded[1:].any()

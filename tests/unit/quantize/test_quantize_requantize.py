"""Requantize: a file whose gate and up differ in scale, one of ModelOpt, and FP8 per tensor."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from hy3.checkpoint.index import open_checkpoint
from hy3.checkpoint.reader import TensorReader
from hy3.cli.app import app
from hy3.nvfp4.scales import tensor_scale
from hy3.nvfp4.tensor import quantize as quantize_tensor
from hy3.quantize.recipe import load_recipe
from hy3.quantize.requantize import requantize
from hy3.quantize.verify import verify
from support.quantized import make_quantized, write_contents, write_index
from support.quantizing import no_progress
from support.scripted import make_random


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random(tmp_path_factory.mktemp("original") / "model", seed=12)


@pytest.fixture(scope="module")
def foreign(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made with rule max; one gate's tensor scale is eight times its partner's."""
    folder = make_quantized(original, tmp_path_factory.mktemp("foreign") / "made", rule="max")
    (folder / "hy3_manifest.json").unlink()
    module = "model.layers.1.mlp.experts.0.gate_proj"
    with TensorReader(open_checkpoint(original)) as reader:
        bits = reader.array(f"{module}.weight")
    weight = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    made = quantize_tensor(weight, tensor_scale(float(weight.abs().max())) * 8, "max")
    checkpoint = open_checkpoint(folder)
    new = {
        f"{module}.weight_packed": made.packed.numpy(),
        f"{module}.weight_scale": made.scales.numpy(),
        f"{module}.weight_global_scale": np.array([made.divisor], np.float32),
    }
    with TensorReader(checkpoint) as reader:
        contents = {
            shard: [
                (info.spec, new.get(name, reader.read(name))) for name, info in head.tensors.items()
            ]
            for shard, head in checkpoint.headers.items()
        }
    for shard, each in contents.items():
        write_contents(folder / shard, each)
    write_index(folder)
    return folder


def test_scales_are_shared_afterwards_and_the_cost_is_said(
    original: Path, foreign: Path, tmp_path: Path
) -> None:
    def failed(folder: Path) -> set[str]:
        return {check.id for check in verify(folder, original).checks if check.status == "fail"}

    assert "tensor_scales" in failed(foreign)
    out = tmp_path / "out"
    done = requantize(foreign, out, original, load_recipe("experts-nvfp4"), "exact", 2, no_progress)
    # What was made is not from the original's bytes, and verify says so; all else holds.
    assert failed(out) <= {"source_hashes", "group_errors"}
    assert done.weights == 72 and len(done.costs) == 2
    for cost in done.costs:
        assert cost.before and cost.after
        assert cost.before.relative > 0 and 0 < cost.after.relative < 2.2 * cost.before.relative
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "the decoded form is removed"


def test_the_verb_without_an_original(foreign: Path, tmp_path: Path) -> None:
    command = ["requantize", str(foreign), str(tmp_path / "out"), "--json"]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    assert result["schema"] == "hy3.requantize/1" and result["costs"] == {}
    refused = CliRunner().invoke(app, ["requantize", str(tmp_path), str(tmp_path / "x")])
    assert refused.exit_code != 0


def test_bf16_is_nothing_to_requantize(original: Path, tmp_path: Path) -> None:
    from hy3.errors import InputError

    with pytest.raises(InputError, match="bf16"):
        requantize(
            original, tmp_path / "o", None, load_recipe("experts-nvfp4"), "exact", 1, no_progress
        )

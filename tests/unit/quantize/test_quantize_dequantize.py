"""The BF16 twin: the oracle's decode, the original's layout, and an honest count of rounding."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hy3.checkpoint.index import open_checkpoint
from hy3.checkpoint.names import is_routed_expert, module_of
from hy3.errors import InputError
from hy3.nvfp4.tensor import NvFp4Tensor
from hy3.quantize.dequantize import Twin, dequantize, plan_twin
from support.quantizing import no_progress, run, tree
from support.scripted import make_random


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Source, its NVFP4 form, and the twin of that."""
    root = tmp_path_factory.mktemp("twin")
    source = make_random(root / "source", seed=9, shards=3)
    run(source, root / "nvfp4")
    assert make_twin(root / "nvfp4", root / "twin").rounded_values == 0
    return source, root / "nvfp4", root / "twin"


def make_twin(folder: Path, out: Path, workers: int = 2) -> Twin:
    return dequantize(plan_twin(folder), out, workers, no_progress)


def load_all(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def rewrite(folder: Path, name: str, value: torch.Tensor) -> None:
    path = open_checkpoint(folder).path(name)
    tensors = load_file(path) | {name: value}
    save_file(tensors, path, metadata={"format": "pt"})


def test_layout_and_files_are_the_originals(folders: tuple[Path, Path, Path]) -> None:
    source, _, twin = folders
    before, after = open_checkpoint(source), open_checkpoint(twin)
    assert {name: before.info(name).spec for name in before.tensors} == {
        name: after.info(name).spec for name in after.tensors
    }
    assert before.tensors == after.tensors
    config = json.loads((twin / "config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == "bfloat16"
    assert (twin / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert not (twin / "hy3_manifest.json").exists()


def test_values_are_the_oracles_bit_for_bit(folders: tuple[Path, Path, Path]) -> None:
    source, packed, twin = (load_all(folder) for folder in folders)
    assert twin.keys() == source.keys()
    for name, weight in twin.items():
        if is_routed_expert(name):
            module = module_of(name)
            expected = NvFp4Tensor(
                packed[f"{module}.weight_packed"],
                packed[f"{module}.weight_scale"].view(torch.uint8),
                float(packed[f"{module}.weight_global_scale"]),
            ).dequantize()
        else:
            expected = source[name]
        assert weight.dtype == expected.dtype
        assert torch.equal(weight, expected), name


def test_requantizing_the_twin_gives_it_back(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """The twin lies on the NVFP4 grid, so a second round must find it without error."""
    outcome = run(folders[2], tmp_path / "again")
    assert outcome.stats
    assert all(each.error == 0 for each in outcome.stats.values())
    make_twin(tmp_path / "again", tmp_path / "twin")
    one, other = load_all(folders[2]), load_all(tmp_path / "twin")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_same_bytes_for_any_number_of_workers(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    make_twin(folders[1], tmp_path / "one", workers=1)
    assert tree(tmp_path / "one") == tree(folders[2])


def test_foreign_divisors_are_counted_as_rounding(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    foreign = Path(shutil.copytree(folders[1], tmp_path / "foreign"))
    name = "model.layers.1.mlp.experts.0.down_proj.weight_global_scale"
    rewrite(foreign, name, torch.tensor([1536.0001220703125]))
    twin = make_twin(foreign, tmp_path / "twin")
    assert 0 < twin.rounded_values <= 64 * 32
    packed, decoded = load_all(foreign), load_all(tmp_path / "twin")
    module = module_of(name)
    scales = packed[f"{module}.weight_scale"].view(torch.uint8)
    expected = NvFp4Tensor(packed[f"{module}.weight_packed"], scales, 1536.0001220703125)
    assert torch.equal(decoded[f"{module}.weight"], expected.dequantize())


def test_modelopt_names_are_read(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    foreign = tmp_path / "modelopt"
    foreign.mkdir()
    for path in folders[1].iterdir():
        if path.suffix == ".safetensors":
            save_file(as_modelopt(load_file(path)), foreign / path.name, {"format": "pt"})
        elif path.name not in ("model.safetensors.index.json", "hy3_manifest.json"):
            (foreign / path.name).write_bytes(path.read_bytes())
    places = {
        name: path.name
        for path in sorted(foreign.glob("*.safetensors"))
        for name in load_file(path)
    }
    index = {"metadata": {}, "weight_map": places}
    (foreign / "model.safetensors.index.json").write_text(json.dumps(index))
    assert make_twin(foreign, tmp_path / "twin").rounded_values == 0
    one, other = load_all(folders[2]), load_all(tmp_path / "twin")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def as_modelopt(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    renamed = {}
    for name, value in tensors.items():
        if name.endswith(".weight_global_scale"):
            renamed[name.replace("global_scale", "scale_2")] = 1 / value
        else:
            renamed[name.replace("weight_packed", "weight")] = value
    return renamed


def test_nan_scales_are_refused(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    broken = Path(shutil.copytree(folders[1], tmp_path / "broken"))
    name = "model.layers.2.mlp.experts.1.up_proj.weight_scale"
    value = load_all(broken)[name].view(torch.uint8).clone()
    value[0, 0] = int(np.uint8(0x7F))
    rewrite(broken, name, value.view(torch.float8_e4m3fn))
    with pytest.raises(InputError, match="NaN") as caught:
        make_twin(broken, tmp_path / "twin")
    assert "experts.1.up_proj" in caught.value.where
    assert not (tmp_path / "twin" / "config.json").exists()


def test_refusals(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds bf16 weights"):
        plan_twin(folders[0])
    with pytest.raises(InputError, match="not empty"):
        make_twin(folders[1], folders[2])

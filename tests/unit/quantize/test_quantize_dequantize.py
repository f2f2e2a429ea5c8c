"""The BF16 twin: the oracle's decode, the original's layout, and an honest count of rounding."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hy3.checkpoint.index import open_checkpoint
from hy3.checkpoint.names import is_routed_expert, module_of
from hy3.errors import EnvironmentFault, InputError
from hy3.nvfp4.tensor import NvFp4Tensor
from hy3.quantize.dequantize import Twin, dequantize
from hy3.quantize.pipeline import quantize
from hy3.quantize.plan import plan_source, plan_twin
from hy3.quantize.progress import Meter
from hy3.quantize.recipe import load_recipe
from hy3.quantize.source import local_source
from hy3.quantize.stats import WeightStats
from support.quantizing import no_progress, run, tree
from support.scripted import make_random
from support.weight_files import load_shards


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
    source, packed, twin = (load_shards(folder) for folder in folders)
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
    one, other = load_shards(folders[2]), load_shards(tmp_path / "twin")
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
    packed, decoded = load_shards(foreign), load_shards(tmp_path / "twin")
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
    one, other = load_shards(folders[2]), load_shards(tmp_path / "twin")
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
    value = load_shards(broken)[name].view(torch.uint8).clone()
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


def killed_twin(folder: Path, out: Path, after_bytes: int) -> int:
    """Make a twin in a child that kills itself after so many bytes; returns the wait status."""
    child = os.fork()
    if child == 0:
        done = 0

        def advance(count: int, stats: WeightStats | None = None) -> None:
            nonlocal done
            done += count
            if done >= after_bytes:
                os.kill(os.getpid(), signal.SIGKILL)

        @contextmanager
        def progress(label: str, total_bytes: int) -> Iterator[Meter]:
            yield advance

        try:
            dequantize(plan_twin(folder), out, 1, progress)
        finally:
            os._exit(9)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("part", [0.1, 0.4, 0.7, 0.95])
def test_a_killed_run_goes_on_and_gives_the_same_bytes(
    folders: tuple[Path, Path, Path], tmp_path: Path, part: float
) -> None:
    total = open_checkpoint(folders[1]).total_bytes
    out = tmp_path / "twin"
    assert killed_twin(folders[1], out, round(part * total)) == signal.SIGKILL
    assert not (out / "config.json").exists()
    shards = len(list(out.glob("*.safetensors")))
    twin = make_twin(folders[1], out)
    assert (twin.resumed_shards, twin.rounded_values) == (shards, 0)
    assert tree(out) == tree(folders[2])


def test_rounding_of_an_earlier_run_is_counted(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    foreign = Path(shutil.copytree(folders[1], tmp_path / "foreign"))
    for number in (1, 2):
        name = f"model.layers.{number}.mlp.experts.0.down_proj.weight_global_scale"
        rewrite(foreign, name, torch.tensor([1536.0001220703125]))
    whole = make_twin(foreign, tmp_path / "whole")
    assert whole.rounded_values > 0
    total = open_checkpoint(foreign).total_bytes
    assert killed_twin(foreign, tmp_path / "twin", round(0.9 * total)) == signal.SIGKILL
    assert make_twin(foreign, tmp_path / "twin").rounded_values == whole.rounded_values
    assert tree(tmp_path / "twin") == tree(tmp_path / "whole")


def test_an_unfinished_twin_is_not_taken_for_a_quantized_one(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "twin"
    assert killed_twin(folders[1], out, 100_000) == signal.SIGKILL
    with pytest.raises(InputError, match="holds work with recipe 'bf16'"):
        run(folders[0], out)
    with pytest.raises(InputError, match="begun from another source"):
        other = Path(shutil.copytree(folders[1], tmp_path / "other"))
        os.utime(next(other.glob("*.safetensors")), ns=(1, 1))
        make_twin(other, out)


def test_what_cannot_fit_is_refused_before_anything_is_written(
    folders: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nearly = plan_twin(folders[1]).output_bytes - 1
    usage = shutil.disk_usage(tmp_path)._replace(free=nearly)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(EnvironmentFault, match="free"):
        make_twin(folders[1], tmp_path / "twin")
    assert not list((tmp_path / "twin").glob("*.safetensors*"))


def test_a_source_that_changes_under_way_is_refused(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    source = Path(shutil.copytree(folders[1], tmp_path / "source"))
    plan = plan_twin(source)
    os.utime(source / "config.json", ns=(1, 1))
    with pytest.raises(InputError, match="changed while") as caught:
        dequantize(plan, tmp_path / "twin", 2, no_progress)
    assert "config.json" in caught.value.where
    assert not (tmp_path / "twin" / "config.json").exists()


def test_what_was_kept_with_nan_stays_so(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    source = Path(shutil.copytree(folders[0], tmp_path / "source"))
    name = "model.layers.1.mlp.experts.0.up_proj.weight"
    broken = load_shards(source)[name]
    broken[0, 0] = float("nan")
    rewrite(source, name, broken)
    plan = plan_source(local_source(source), load_recipe("experts-nvfp4"), "max", "same")
    kept = plan_source(
        local_source(source), load_recipe("experts-nvfp4"), "max", "same", nonfinite=(name,)
    )
    with pytest.raises(InputError, match="holds 1 NaN"):
        quantize(plan, tmp_path / "refused", 1, no_progress)
    quantize(kept, tmp_path / "kept", 1, no_progress)
    make_twin(tmp_path / "kept", tmp_path / "twin")
    assert load_shards(tmp_path / "twin")[name][0, 0].isnan()
    run(tmp_path / "kept", tmp_path / "again", decodes=True)
    assert load_shards(tmp_path / "again")[name][0, 0].isnan()

"""Repair: each planted fault is mended, the files are kept, and verify then passes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hy3.quantize.repair as repair_module
from hy3.cli.app import app
from hy3.quantize.repair import Change, plan_repair, repair
from hy3.quantize.verify import verify
from support.json_files import edit_json
from support.quantized import make_quantized
from support.scripted import make_random


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("repair")
    out = make_quantized(make_random(base / "source", seed=9), base / "out")
    plan = plan_repair(out)  # the generated one lacks what quantize itself would have written
    repair(plan)
    for kept in out.glob("*.bak*"):
        kept.unlink()
    return out


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "model"))


def failed(folder: Path) -> set[str]:
    """Checks that fail or warn, but for the warning that backups lie beside the files."""
    checks = verify(folder).checks
    found = {check.id for check in checks if check.status == "fail"}
    for check in checks:
        backups = check.id == "hashes" and all(".bak" in name for name in check.tensors)
        found |= {check.id} if check.status == "warn" and not backups else set()
    return found


def test_a_sound_checkpoint_is_left_alone(folder: Path) -> None:
    assert failed(folder) == set()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    plan = plan_repair(folder)
    assert plan.changes == () and plan.files == {} and repair(plan) == []
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("file", "changes", "key"),
    [
        ("config.json", {"dtype": None, "torch_dtype": None}, "dtype"),
        ("config.json", {"dtype": "float16"}, "dtype"),
        ("tokenizer_config.json", {"token_suffix": None}, "token_suffix"),
        ("tokenizer_config.json", {"token_suffix": ":other"}, "token_suffix"),
        ("generation_config.json", {"top_k": 0}, "top_k"),
        ("generation_config.json", {"top_k": True}, "top_k"),
    ],
)
def test_each_fault_is_mended_and_the_file_kept(
    folder: Path, file: str, changes: dict[str, Any], key: str
) -> None:
    edit_json(folder / file, **changes)
    broken = (folder / file).read_bytes()
    plan = plan_repair(folder)
    assert key in [change.key for change in plan.changes]
    assert {change.file for change in plan.changes} == {file}
    assert set(repair(plan)) == {f"{file}.bak", "hy3_manifest.json.bak"}
    assert (folder / f"{file}.bak").read_bytes() == broken
    assert failed(folder) == set()
    assert plan_repair(folder).changes == ()


@pytest.mark.parametrize(
    "ignore",
    [
        ["lm_head"],  # BF16 linears that SGLang matches to nothing
        ["re:.*"],  # the experts themselves are ignored
        ["lm_head", "re:.*self_attn.*", "re:.*shared_mlp.*", "re:.*gate$", "re:.*eh_proj.*"],
    ],
)
def test_an_ignore_list_is_written_anew(folder: Path, ignore: list[str]) -> None:
    path = folder / "config.json"
    right = json.loads(path.read_text())["quantization_config"]
    edit_json(path, quantization_config=right | {"ignore": ignore})
    assert failed(folder) & {"vllm_matching", "sglang_matching"}
    plan = plan_repair(folder)
    assert plan.changes == (
        Change("config.json", "quantization_config.ignore", ignore, right["ignore"]),
    )
    repair(plan)
    assert failed(folder) == set()


def test_a_second_repair_keeps_the_first_backup(folder: Path) -> None:
    for dtype in ("float16", "float32"):
        edit_json(folder / "config.json", dtype=dtype)
        repair(plan_repair(folder))
    kept = [json.loads((folder / f"config.json.bak{n}").read_text())["dtype"] for n in ("", "2")]
    assert kept == ["float16", "float32"]


def test_what_metadata_cannot_mend_is_said(folder: Path) -> None:
    path = folder / "config.json"
    right = json.loads(path.read_text())["quantization_config"]
    edit_json(
        path, quantization_config=right | {"config_groups": {"g": {"weights": {}, "targets": []}}}
    )
    (folder / "hy3_manifest.json").unlink()
    plan = plan_repair(folder)
    assert any(line.startswith("vllm_matching") for line in plan.left)


@pytest.mark.parametrize("ignore", [None, ["lm_head"]])
def test_targets_that_match_nothing_are_said(folder: Path, ignore: list[str] | None) -> None:
    """Also where the ignore list is right, or has been mended."""
    path = folder / "config.json"
    right = json.loads(path.read_text())["quantization_config"]
    (name, group), *_ = right["config_groups"].items()
    groups = {"config_groups": {name: group | {"targets": ["re:nothing"]}}}
    edit_json(path, quantization_config=right | groups | ({"ignore": ignore} if ignore else {}))
    plan = plan_repair(folder)
    assert any(line.startswith("vllm_matching") for line in plan.left)
    assert bool(plan.changes) == bool(ignore)


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("calls", range(1, 8))
def test_a_repair_that_was_killed_is_finished_by_the_next(
    folder: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Before each of its writes: four backups, the manifest, and two of three files."""
    edit_json(folder / "config.json", dtype="float16")
    edit_json(folder / "tokenizer_config.json", token_suffix=None)
    edit_json(folder / "generation_config.json", top_k=0)
    real, left = repair_module.write_file_durably, iter(range(calls))

    def write(path: Path, data: bytes) -> None:
        if next(left, None) is None:
            raise Killed
        real(path, data)

    monkeypatch.setattr(repair_module, "write_file_durably", write)
    with pytest.raises(Killed):
        repair(plan_repair(folder))
    monkeypatch.undo()
    repair(plan_repair(folder))
    assert failed(folder) == set()


def test_the_verb(folder: Path) -> None:
    edit_json(folder / "config.json", dtype="float16")
    dry = CliRunner().invoke(app, ["repair", str(folder), "--dry-run", "--json"])
    assert dry.exit_code == 0
    result = json.loads(dry.stdout)
    assert result["schema"] == "hy3.repair/1" and result["backups"] == []
    assert result["changes"] == [
        {"file": "config.json", "key": "dtype", "before": "float16", "after": "bfloat16"}
    ]
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float16"
    done = CliRunner().invoke(app, ["repair", str(folder)])
    assert done.exit_code == 0 and "config.json.bak" in done.stdout
    assert "nothing to repair" in CliRunner().invoke(app, ["repair", str(folder)]).stdout

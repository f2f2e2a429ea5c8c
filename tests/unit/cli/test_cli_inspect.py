"""``hy3 inspect`` as people and programs run it."""

from __future__ import annotations

import gc
import json

import pytest
from typer.testing import CliRunner

from hy3.checkpoint.census import take_census
from hy3.cli.app import app
from hy3.errors import InputError
from support.real_models import HY3
from support.sparse import write_sparse

RUNNER = CliRunner()


def test_json_of_the_whole_model(tmp_path):
    packed = write_sparse(tmp_path / "Hy3-NVFP4", HY3, packed=True)
    run = RUNNER.invoke(app, ["inspect", str(packed), "--json"])
    assert run.exit_code == 0, run.output
    result = json.loads(run.stdout)
    assert result["schema"] == "hy3.inspect/1"
    assert (result["model"], result["scheme"], result["layers"]) == ("Hy3-NVFP4", "nvfp4-w4a16", 80)
    assert result["totals"] == {
        "tensors": 139_298,
        "bytes": 180_826_481_152,
        "shards": 99,
        "parameters": 298_786_155_776,
    }
    assert result["mtp"] == {"tensors": 1745, "bytes": 2_295_901_696, "experts": "nvfp4"}
    assert result["forms"] == [["routed_expert", "nvfp4", 46_080]] and result["recipe"] is None
    assert result["marker_suffix"] is None
    assert result["missing"] == result["unexpected"] == result["mismatched"] == []
    experts = [row for row in result["classes"] if row["name"] == "routed_expert"]
    weights = 289_910_292_480
    assert [tuple(row.values()) for row in experts] == [
        ("routed_expert", "codes", "U8", 46_080, weights // 2),
        ("routed_expert", "group scales", "F8_E4M3", 46_080, weights // 16),
        ("routed_expert", "tensor scales", "F32", 46_080, 4 * 46_080),
    ]
    assert list(experts[0]) == ["name", "role", "dtype", "tensors", "bytes"]
    named = [(row["name"], row["role"]) for row in result["classes"]]
    assert len(named) == len(set(named))


def test_the_collector_rests_while_headers_are_read(tmp_path, monkeypatch):
    write_sparse(tmp_path, {**HY3, "num_hidden_layers": 2}, shards=2)
    enabled = []

    def take(*arguments):
        enabled.append(gc.isenabled())
        return take_census(*arguments)

    monkeypatch.setattr("hy3.checkpoint.census.take_census", take)
    assert RUNNER.invoke(app, ["inspect", str(tmp_path)]).exit_code == 0
    assert enabled == [False] and gc.isenabled()


def test_text(tmp_path):
    write_sparse(tmp_path, {**HY3, "num_hidden_layers": 2}, shards=3, packed=True)
    run = RUNNER.invoke(app, ["inspect", str(tmp_path)])
    assert run.exit_code == 0
    assert "nvfp4-w4a16, 8.70 B parameters, 3500 tensors in 3 shards, 6.98 GB" in run.stdout
    assert "2 layers, MTP layer of 2.30 GB with nvfp4 experts, no markers found" in run.stdout
    assert "quantized: routed_expert nvfp4 (1152)" in run.stdout
    assert "routed_expert" in run.stdout and "F8_E4M3" in run.stdout


def test_gaps_are_listed_shortly(tmp_path):
    write_sparse(tmp_path, {**HY3, "num_hidden_layers": 2}, shards=2)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    run = RUNNER.invoke(app, ["inspect", str(tmp_path)])
    assert run.exit_code == 0
    assert "missing: 593" in run.stdout and "and 583 more; --json lists all" in run.stdout
    assert "unexpected: 4" in run.stdout and "  model.layers.2.eh_proj.weight" in run.stdout


@pytest.mark.parametrize("model", ["tencent/Hy3", "hf://tencent/Hy3"])
def test_a_verb_that_needs_a_folder_says_so(model):
    run = RUNNER.invoke(app, ["verify", model])
    assert isinstance(run.exception, InputError) and run.exception.exit_code == 2
    assert "wants a local folder" in run.exception.message
    assert "`hf download tencent/Hy3 --local-dir DIR`" in run.exception.hint


@pytest.mark.parametrize("arguments", [["verify"], ["repair"], ["dequantize", "OUT"]])
def test_the_revision_asked_for_is_the_one_to_fetch(arguments):
    run = RUNNER.invoke(app, [arguments[0], "hf://tencent/Hy3@v1", *arguments[1:]])
    assert isinstance(run.exception, InputError)
    assert "`hf download tencent/Hy3 --revision v1 --local-dir DIR`" in run.exception.hint


def test_not_a_checkpoint(tmp_path):
    run = RUNNER.invoke(app, ["inspect", str(tmp_path / "none")])
    assert isinstance(run.exception, InputError) and "does not exist" in run.exception.message
    run = RUNNER.invoke(app, ["inspect", str(tmp_path)])
    assert isinstance(run.exception, InputError) and "config.json" in run.exception.where


@pytest.mark.parametrize("verb", ["quantize", "dequantize", "requantize"])
def test_a_hub_name_is_no_folder_to_write(verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = RUNNER.invoke(app, [verb, ".", "hf://tencent/Hy3"])
    assert isinstance(run.exception, InputError) and run.exception.exit_code == 2
    assert run.exception.where == "hf://tencent/Hy3"
    assert "OUT is a local folder" in run.exception.message
    assert not list(tmp_path.iterdir())

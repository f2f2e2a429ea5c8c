"""A sound file passes, an unsound one proves nothing, and the command says so."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from hy3.checkpoint.manifest import MANIFEST_NAME
from hy3.cli.app import app
from hy3.errors import InputError
from hy3.quantize.verify import bytes_to_read, verify
from support.planted import (
    FROM_SOURCE,
    PROVED,
    flip_byte,
    only_failure,
    statuses,
)
from support.quantized import make_quantized

RUNNER = CliRunner()


@pytest.mark.parametrize(
    ("rule", "mtp"), [("exact", "same"), ("max", "bf16"), ("four-over-six", "same")]
)
def test_a_sound_file_passes(source, tmp_path, rule, mtp):
    out = make_quantized(source, tmp_path / "out", rule, mtp)
    verdict = verify(out)
    assert verdict.ok and statuses(verdict, "pass") == PROVED
    assert statuses(verdict, "not_proved") == FROM_SOURCE
    verdict = verify(out, source)
    assert verdict.ok and statuses(verdict, "pass") == PROVED | FROM_SOURCE
    classes = {"routed_expert"} | ({"routed_expert (MTP)"} if mtp == "same" else set())
    assert set(verdict.error_by_class) == classes
    assert all(0.005 < error.relative < 0.0105 for error in verdict.error_by_class.values())


def test_progress_adds_up(source, sound):
    seen = []
    verify(sound, source, seen.append)
    assert sum(seen) == bytes_to_read(sound, source)


def test_unsound_files_fail_and_prove_nothing(source, out):
    path = out / "model-00001-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    verdict = verify(out, source)
    only_failure(verdict, "files", "outside the data section")
    assert statuses(verdict, "pass", "warn") == set()
    assert {check.id for check in verdict.checks} == PROVED | FROM_SOURCE


def test_an_unfinished_folder_fails(out):
    (out / "hy3_resume.json").write_text("{}")
    verdict = verify(out)
    assert not verdict.ok
    assert "not finished" in next(each for each in verdict.checks if each.status == "fail").detail


def test_damaged_manifest_fails(out):
    (out / MANIFEST_NAME).write_text("{}")
    only_failure(verify(out), "files", "schema is None")


def test_a_fault_in_one_thread_stops_all(source, sound, monkeypatch):
    calls = []

    def broken(reader, shard, progress):
        calls.append(shard)
        if len(calls) == 1:
            raise InputError("the disk is gone", hint="look at it", where=shard)
        progress(1)

    monkeypatch.setattr("hy3.quantize.verify.scan_shard", broken)
    with pytest.raises(InputError, match="the disk is gone"):
        verify(sound)


@pytest.mark.parametrize("text", ["{", '{"model_type": "llama"}'])
def test_damaged_config_fails(out, text):
    (out / "config.json").write_text(text)
    only_failure(verify(out), "files", "config.json")


def test_unsound_arguments(out, tmp_path):
    (out / "config.json").unlink()
    with pytest.raises(InputError, match=r"holds no config\.json"):
        verify(out)
    with pytest.raises(InputError):
        verify(tmp_path / "none")
    with pytest.raises(InputError):
        verify(out, tmp_path / "none")


def test_command(source, sound):
    run = RUNNER.invoke(app, ["verify", str(sound), "--source", str(source), "--json"])
    assert run.exit_code == 0, run.output
    result = json.loads(run.stdout)
    assert result["schema"] == "hy3.verify/1" and result["ok"] is True
    assert {check["id"] for check in result["checks"]} == PROVED | FROM_SOURCE
    assert set(result["checks"][0]) == {"id", "status", "detail", "tensors"}
    assert 0.005 < result["error_by_class"]["routed_expert"]["relative_mse"] < 0.0105


def test_command_that_fails(out):
    flip_byte(out / "tokenizer.json", 0)
    run = RUNNER.invoke(app, ["verify", str(out)])
    assert run.exit_code == 1
    assert (
        "hashes" in run.stdout and "tokenizer.json is not the file that was written" in run.stdout
    )
    run = RUNNER.invoke(app, ["verify", str(out), "--json"])
    assert run.exit_code == 1 and json.loads(run.stdout)["ok"] is False

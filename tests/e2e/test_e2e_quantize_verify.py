"""From BF16 to proof by the commands alone: what ``quantize`` writes, ``verify`` proves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hy3.checkpoint.file_hash import hash_file
from hy3.cli.app import app
from support.quantized import make_quantized
from support.scripted import make_random

RUNNER = CliRunner()


def run(*arguments: str) -> dict:
    result = RUNNER.invoke(app, [*arguments, "--json", "--quiet"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return make_random(tmp_path_factory.mktemp("source") / "model", seed=11, num_experts=4)


@pytest.mark.parametrize(
    ("rule", "mtp"), [("exact", "same"), ("four-over-six", "same"), ("max", "bf16")]
)
def test_everything_is_proved(source, tmp_path, rule, mtp):
    out = tmp_path / "out"
    run("quantize", str(source), str(out), "--scales", rule, "--mtp", mtp)
    verdict = run("verify", str(out), "--source", str(source))
    assert verdict["ok"]
    assert {check["status"] for check in verdict["checks"]} == {"pass"}, verdict["checks"]
    classes = {"routed_expert"} | ({"routed_expert (MTP)"} if mtp == "same" else set())
    assert set(verdict["error_by_class"]) == classes


def test_shards_are_those_of_the_plain_quantizer(source, tmp_path):
    """The streaming, threaded pipeline writes what the oracle gives tensor by tensor."""
    out, plain = tmp_path / "out", make_quantized(source, tmp_path / "plain")
    run("quantize", str(source), str(out))
    shards = sorted(path.name for path in source.glob("*.safetensors"))
    assert len(shards) == 3
    for shard in shards:
        assert hash_file(out / shard) == hash_file(plain / shard), shard


def test_inspect_before_and_after(source, tmp_path):
    out = tmp_path / "out"
    run("quantize", str(source), str(out))
    before, after = run("inspect", str(source)), run("inspect", str(out))
    assert (before["scheme"], after["scheme"]) == ("bf16", "nvfp4-w4a16")
    assert before["totals"]["parameters"] == after["totals"]["parameters"]
    assert before["marker_suffix"] == after["marker_suffix"] == ":opensource"
    assert after["mtp"]["experts"] == "nvfp4"
    for result in (before, after):
        assert result["missing"] == result["unexpected"] == result["mismatched"] == []

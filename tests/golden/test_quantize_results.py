"""docs/quantize.md says of the other quantizers and of vLLM what the result files say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "benchmarks" / "results").glob("peers_quantize_*.json"))


def rows_of(path):
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {(row["size"], row["tool"], row["preset"]): row for row in rows}


@pytest.mark.parametrize("name", ["peers_table", "agreement_table"])
def test_the_tables_are_those_of_the_files(name):
    command = [sys.executable, str(ROOT / "tools" / f"{name}.py"), "--check"]
    assert subprocess.run(command).returncode == 0, f"run python tools/{name}.py"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_prose_on_peers_holds(path):
    rows = {key: row for key, row in rows_of(path).items() if "error" not in row}
    assert rows
    # Our bytes are the same on every machine; the other file has the sizes that this one lacks.
    ours = {key: row for other in FILES for key, row in rows_of(other).items()} | rows
    for (size, tool, preset), row in rows.items():
        has_model = tool == "modelopt" or preset == "oneshot"
        assert row["mtp_kept"] == (0 if has_model else row["mtp_tensors"])
        agreeing = row["pairs_agreeing"] == row["pairs"]
        assert agreeing == (tool == "hy3" or has_model)
        assert row["others_identical"] == row["others"] - (17 if has_model else 0)
        exact = ours[size, "hy3", "exact"]["relative_error"]
        if preset == "sweep":
            assert row["relative_error"] == pytest.approx(exact, rel=0.01)
        elif preset == "nvfp4_expanded_mse":
            assert exact < row["relative_error"] < 1.05 * exact
        elif tool != "hy3":
            assert row["relative_error"] > exact


def test_the_prose_on_vllm_holds():
    results = json.loads((ROOT / "benchmarks/results/vllm_agreement.json").read_text("utf-8"))
    ran = [case for case in results["cases"] if "mean_abs_difference" in case]
    plain = {case["checkpoint"]: case for case in ran if case["kv_dtype"] == "bfloat16"}
    rounds_activations = {"experts-nvfp4-attn-fp8, activations FP8", "fp8"}
    for case in ran:
        if case["checkpoint"] not in rounds_activations:
            assert case["mean_abs_difference"] <= 0.05
            assert case["greedy"]["beyond_near_ties"] == 0
    assert {name.split(",")[0] for name in plain} >= {"experts-nvfp4", "all-nvfp4", "fp8"}
    for name, times in (("experts-nvfp4", 8.5), ("all-nvfp4", 2.7)):
        own = max(plain[name]["own_differences"].values())
        assert plain[name]["mean_abs_difference"] / own == pytest.approx(times, abs=0.05)
    exact = plain["experts-nvfp4"]["from_fp32"]
    assert exact["checkpoint"]["mean"] == pytest.approx(exact["twin"]["mean"], rel=0.05)
    assert results["faults_that_passed"] == [] and len(results["planted_faults"]) == 6
    assert all(case["outcome"] == "differs" for case in results["planted_faults"])

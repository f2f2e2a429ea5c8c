"""docs/quantize.md says of the other quantizers and of vLLM what the result files say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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


ROUNDS_ACTIVATIONS = {"experts-nvfp4-attn-fp8, activations FP8", "fp8"}


@pytest.fixture(scope="module")
def vllm() -> dict[str, Any]:
    path = ROOT / "benchmarks/results/vllm_agreement.json"
    return json.loads(path.read_text("utf-8"))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def weight_only(vllm: dict[str, Any]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """(file, KV dtype, mode) -> case, of the files that leave activations alone."""
    return {
        (case["checkpoint"], case["kv_dtype"], case["mode"]): case
        for case in vllm["cases"]
        if case["outcome"] != "refused" and case["checkpoint"] not in ROUNDS_ACTIVATIONS
    }


def own_factor(case: dict[str, Any]) -> float:
    return float(case["mean_abs_difference"] / max(case["own_differences"].values()))


def test_every_file_runs_one_way_or_another(vllm: dict[str, Any]) -> None:
    names = {case["checkpoint"] for case in vllm["cases"]}
    ran = {case["checkpoint"] for case in vllm["cases"] if "mean_abs_difference" in case}
    assert len(names) == 10 and ran == names
    assert {case["outcome"] for case in vllm["cases"]} == {"agrees", "differs", "refused"}


def test_the_prose_on_the_mean_holds(weight_only: dict[Any, dict[str, Any]]) -> None:
    above = {key: case for key, case in weight_only.items() if case["mean_abs_difference"] > 0.05}
    assert {key[:2] for key in above} == {("experts-nvfp4-attn-fp8", "fp8")}
    assert [round(case["mean_abs_difference"], 3) for case in above.values()] == [0.053, 0.057]
    far = {key for key, case in weight_only.items() if case["greedy"]["beyond_near_ties"]}
    assert far and all("Humming" in mode for _, _, mode in far)


def test_the_prose_on_the_twins_own_difference_holds(
    vllm: dict[str, Any], weight_only: dict[Any, dict[str, Any]]
) -> None:
    factors = {
        kv: [own_factor(case) for key, case in weight_only.items() if key[1] == kv]
        for kv in ("bfloat16", "fp8")
    }
    assert [round(pick(factors["bfloat16"]), 1) for pick in (min, max)] == [1.3, 2.1]
    assert [round(pick(factors["fp8"]), 1) for pick in (min, max)] == [6.5, 11.2]
    plain = weight_only["experts-nvfp4", "bfloat16", "as vLLM chooses"]
    assert plain["mean_abs_difference"] / plain["own_differences"]["single"] > 8.5
    exact = plain["from_fp32"]
    assert exact["checkpoint"]["mean"] == pytest.approx(exact["twin"]["mean"], rel=0.05)
    for each in vllm["twins_by_triton_attention"]:
        if each["kv_dtype"] == "fp8":
            assert each["mean_abs_difference"] == pytest.approx(0.05, abs=0.003)


def test_batch_shapes_took_the_steps_that_they_name(vllm: dict[str, Any]) -> None:
    tokens = vllm["prompt_tokens"] + vllm["documents"]
    for each in vllm["twins_by_triton_attention"]:
        steps = {shape: found["mean_tokens"] for shape, found in each["steps"].items()}
        assert steps["together"] > tokens / 3
        assert 15 < steps["pieces of 16"] <= 16
        assert steps["token by token"] < vllm["documents"]


def test_planted_faults_show(vllm: dict[str, Any]) -> None:
    assert vllm["faults_that_passed"] == [] and len(vllm["planted_faults"]) == 6
    assert all(case["outcome"] == "differs" for case in vllm["planted_faults"])


def test_the_prose_on_the_search_on_a_gpu_holds() -> None:
    found = json.loads((ROOT / "benchmarks/results/scale_search_gpu.json").read_text("utf-8"))
    results = found["results"]
    plain, weighted = results["gb_per_s"], results["gb_per_s_weighted"]
    assert [round(each["rules"]["exact"]) for each in (plain, weighted)] == [376, 182]
    one = "exact_on_one_1536x4096_matrix"
    assert [round(each[one]) for each in (plain, weighted)] == [100, 24]
    assert min(results["gb_per_s_exact_by_distribution"].values()) >= 200
    rates = results["gb_per_s_exact_by_distribution_weighted"]
    below = {name: round(rate) for name, rate in rates.items() if rate < 120}
    assert len(rates) == 14 and below == {"saturated": 59, "t2": 118}

"""Writes the README's table of results from the JSON files that hold them.

python tools/results_table.py            # rewrites the part of README.md between its marks
python tools/results_table.py --check    # exits 1 if the README says anything else
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marked import rewrite

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = Path("benchmarks/results")


def load(name: str) -> dict[str, Any]:
    """One result file."""
    document: dict[str, Any] = json.loads(
        (ROOT / RESULTS / f"{name}.json").read_text(encoding="utf-8")
    )
    return document


def rows() -> Iterator[tuple[str, str, str]]:
    """What was measured, what it is, and the file that says so."""
    gpu = load("scale_search_gpu")["results"]
    speed = gpu["gb_per_s"]["rules"]["exact"]
    yield (
        "exact scale search, one H200",
        f"{speed:.0f} GB/s of BF16; {gpu['sweep_mismatches']} mismatches with all 119 "
        f"codes over {gpu['sweep_groups'] / 1e9:.2f} billion groups",
        "scale_search_gpu",
    )
    of_kind = gpu["gb_per_s_exact_by_distribution_weighted"].values()
    yield (
        "the same under a weight for each column",
        f"{gpu['gb_per_s_weighted']['rules']['exact']:.0f} GB/s; by distribution "
        f"{min(of_kind):.0f} to {max(of_kind):.0f}",
        "scale_search_gpu",
    )
    exact = load("scale_search")["results"]["rules"]["exact"]["median_gb_per_cpu_s"]
    yield "exact scale search, one CPU core", f"{exact:.2f} GB/s of BF16", "scale_search"
    fp8 = load("fp8_rates")["results"]
    rows, blocks = (
        fp8[kind]["encode"]["median_gb_per_cpu_s"] for kind in ("per_channel", "blocks_128x128")
    )
    yield (
        "FP8 encoder, one CPU core",
        f"{rows:.1f} GB/s of BF16 per channel, {blocks:.1f} in blocks",
        "fp8_rates",
    )
    memory = load("quantize_memory")["results"]
    yield (
        f"anonymous memory of quantize, shards of {memory['shard_bytes'][0] / 1e9:.1f} GB",
        f"{memory['peak_rss_anon_bytes'] / 1e6:.0f} MB at its peak",
        "quantize_memory",
    )
    files = load("quantize_files")["results"]
    rate = files["warm"]["2_workers"]["bytes_per_wall_s"]["median"] / 2
    near, far = (files[part]["speed_relative_to_mean_copy"] for part in ("disk", "disk_scattered"))
    yield (
        "`hy3 quantize`, file to file",
        f"{rate / 1e9:.2f} GB/s of BF16 per core, cached; bound by the disk, {near:.2f} times "
        f"as fast as copying the same bytes ({far:.2f} with gate and up in different shards)",
        "quantize_files",
    )
    case = load("vllm_agreement")["cases"][0]
    yield (
        "hy3-tiny in vLLM 0.26's Marlin kernel, beside its BF16 twin",
        f"log-probabilities {case['mean_abs_difference']:.3f} apart on average, "
        f"{case['greedy']['equal']} of {case['greedy']['texts']} texts equal",
        "vllm_agreement",
    )
    yield from plan_rows(load("plan_accuracy"))
    for device, engine in (("cpu", "vLLM 0.32 on a CPU"), ("h200", "vLLM 0.26 on one H200")):
        yield kv_token_row(load(f"plan_kv_tokens_{device}"), engine, f"plan_kv_tokens_{device}")
    yield from decode_rows(load("decode_speed"))
    quality = load("tiny_quality")["checkpoints"]
    for label, name in (("bf16", "BF16"), ("nvfp4", "NVFP4")):
        found = quality[label]
        yield (
            f"hy3-tiny in {name}",
            f"arithmetic {found['arithmetic_high']['exact']:.1%}, tool calls "
            f"{found['tool_calls']['schema_valid']:.1%} valid, first draft accepted "
            f"{found['drafts']['accepted'][0]:.0%}",
            "tiny_quality",
        )
    found = load("demo")["fresh"]
    yield "`hy3 demo`, nothing cached", f"{found['wall_s']:.0f} s", "demo"
    found = load("startup")["help"]["warm_s"]["median"]
    yield "`hy3 --help`", f"{found:.2f} s", "startup"


def plan_rows(document: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Published runs of Hy3 beside what is predicted without their source."""
    wanted = {"1": "eager, 1 stream", "2": "eager, 6 streams", "4": "graphs, 1 stream"}
    for row in document["rows"]:
        if row["id"] in wanted:
            low, high = row["interval_tok_s"]
            yield (
                f"Hy3 NVFP4 on two DGX Sparks, {wanted[row['id']]}",
                f"published {row['measured_tok_s']:.1f} tok/s a stream; predicted "
                f"{row['predicted_tok_s']:.1f} ({low:.1f} to {high:.1f})",
                "plan_accuracy",
            )


def kv_token_row(document: dict[str, Any], engine: str, name: str) -> tuple[str, str, str]:
    """How far the planned size of the KV cache lies from an engine's own."""
    found = document["summary"]
    return (
        f"KV tokens planned, against {engine}",
        f"within {found['largest_error']:.2%} on {found['compared']} engines",
        name,
    )


def decode_rows(document: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The fastest setting of each side, streams together."""
    for run in document["runs"]:
        count = run["streams"]
        best = {
            label: max(side["tok_s"] for side in sides if side["side"].startswith(label))
            for label, sides in (
                ("hy3", run["sides"]),
                ("transformers", run["sides"]),
                ("vLLM", run["beside"]),
            )
        }
        yield (
            f"decode of hy3-tiny on two cores, {count} stream{'s' * (count > 1)}",
            f"{best['hy3']:.0f} tok/s; {best['hy3'] / best['transformers']:.1f} x transformers, "
            f"{best['hy3'] / best['vLLM']:.1f} x vLLM for CPUs",
            "decode_speed",
        )


def table() -> str:
    """The table in Markdown."""
    lines = ["| what | measured | source |", "|---|---|---|"]
    lines += [
        f"| {what} | {found} | [JSON]({RESULTS / name}.json) |" for what, found, name in rows()
    ]
    return "\n".join(lines)


def main() -> int:
    """Rewrite or check."""
    return rewrite(README, {"results": table()})


if __name__ == "__main__":
    sys.exit(main())

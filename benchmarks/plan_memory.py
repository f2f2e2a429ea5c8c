"""Compares planned weights and KV tokens with every Hy3 row that states them.

Weights: within 3 %. KV tokens: within 10 % of rows that state the utilization they ran at.
Writes benchmarks/results/plan_memory.json.
"""

from __future__ import annotations

import csv
import re
import sys
import tomllib
from dataclasses import replace
from typing import Any

from hy3.hardware.device import GIB, parse_hardware
from hy3.plan.footprint import footprint
from hy3.plan.model_shape import ModelShape
from hy3.plan.settings import Settings
from plan_rows import DATA, build_shape
from record import record

# A checkpoint of about 181 GB over two ranks is 90 GB each: the row's column is headed GiB.
_STATED_IN_GB = {"1"}
_SEQUENCES = 256  # vLLM's own default of --max-num-seqs, for which it captures graphs
_HARDWARE = {
    "2x DGX Spark GB10": "2xgb10",
    "1x DGX Spark GB10": "gb10",
    "4x H200": "4xh200",
    "2x H200": "2xh200",
    "4x B200": "4xb200",
    "1x B300 275GB": "b300",
}
# Words of the quant column -> bytes a parameter of routed experts, attention, shared and dense.
_FORMATS = (
    ("NVFP4 W4A4 MoE + FP8 attn", 0.5625, 1.0, 0.5625),
    ("2.9 bit codebook", 2.9 / 8, 2.9 / 8, 2.9 / 8),
    ("FP8", 1.0, 1.0, 1.0),
    ("NVFP4", 0.5625, 2.0, 2.0),
    ("INT4", 0.5625, 2.0, 2.0),
)


def main() -> int:
    with (DATA / "measured.csv").open(newline="", encoding="utf-8") as file:
        stated = [
            row
            for row in csv.DictReader(file)
            if "Hy3" in row["model"] and row["weights_gib_per_gpu"]
        ]
    weights = [_compare_weights(row) for row in stated]
    tokens = [_compare_tokens(row) for row in stated if _utilization(row) and row["kv_pool_tokens"]]
    results = {
        "weights_within_3_percent": all(abs(each["error"]) <= 0.03 for each in weights),
        "kv_tokens_within_10_percent": all(abs(each["error"]) <= 0.10 for each in tokens),
        "weights": weights,
        "kv_tokens": tokens,
    }
    print(record("plan_memory", results))
    for each in (*weights, *tokens):
        print(each)
    return 0


def _compare_weights(row: dict[str, str]) -> dict[str, Any]:
    planned = _plan(row).weight_bytes / GIB
    unit = 1e9 / GIB if row["id"] in _STATED_IN_GB else 1.0
    measured = float(row["weights_gib_per_gpu"]) * unit
    return _line(row, planned, measured, "GiB of weights")


def _compare_tokens(row: dict[str, str]) -> dict[str, Any]:
    return _line(row, _plan(row).kv_tokens, float(row["kv_pool_tokens"]), "tokens of KV cache")


def _line(row: dict[str, str], planned: float, measured: float, unit: str) -> dict[str, Any]:
    return {
        "row": row["id"],
        "model": row["model"],
        "hardware": row["hardware"],
        "unit": unit,
        "planned": round(planned, 2),
        "measured": round(measured, 2),
        "error": round(planned / measured - 1, 4),
    }


def _plan(row: dict[str, str]) -> Any:
    hardware = parse_hardware(_HARDWARE[row["hardware"]])
    batched = re.search(r"max_num_batched_tokens (\d+)", row["notes"])
    settings = Settings(
        engine="vllm",
        tensor_parallel=int(row["tp"]),
        concurrency=_SEQUENCES,
        kv_dtype="fp8" if row["kv_dtype"].startswith("fp8") else "bf16",
        draft_depth=int(row["spec_k"] or 0),
        graphs=row["graphs"] != "eager",
        batched_tokens=int(batched[1]) if batched else 8192,
        utilization=_utilization(row),
    )
    return footprint(_shape(row), hardware.device, settings)


def _shape(row: dict[str, str]) -> ModelShape:
    entry = tomllib.loads((DATA / "architectures.toml").read_text(encoding="utf-8"))["Hy3"]
    routed, attention, other = next(sizes for words, *sizes in _FORMATS if words in row["quant"])
    shape = build_shape("Hy3", entry, routed, other)
    if "codebook" in row["quant"]:  # bits of the whole model, embeddings included
        classes = [replace(each, nbytes=round(each.parameters * routed)) for each in shape.classes]
    else:
        classes = [
            replace(each, nbytes=round(each.parameters * attention))
            if each.name == "attention"
            else each
            for each in shape.classes
        ]
    return replace(shape, classes=tuple(classes))


def _utilization(row: dict[str, str]) -> float | None:
    found = re.search(r"GMU (0\.\d+)", row["notes"])
    return float(found[1]) if found else None


if __name__ == "__main__":
    sys.exit(main())

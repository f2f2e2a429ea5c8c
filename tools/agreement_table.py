"""Writes the tables "In the real kernel" of docs/quantize.md from their result file.

python tools/agreement_table.py            # rewrites the parts of the page between its marks
python tools/agreement_table.py --check    # exits 1 if the page says anything else
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hy3.report.markdown import markdown_table
from marked import rewrite

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "quantize.md"
RESULT = ROOT / "benchmarks" / "results" / "vllm_agreement.json"
HEADER = ("file", "started", "KV BF16", "KV FP8", "twin's own", "from fp32: file", "twin", "texts")


def agreement(document: dict[str, Any]) -> str:
    """One row for each file and way to start vLLM."""
    ways: dict[tuple[str, str], dict[str, Any]] = {}
    for case in document["cases"] + document["planted_faults"]:
        name = case.get("checkpoint") or f"fault: {case['fault']}"
        ways.setdefault((name, case["mode"]), {})[case["kv_dtype"]] = case
    return markdown_table(HEADER, [row(*way, cases) for way, cases in ways.items()])


def attention(document: dict[str, Any]) -> str:
    """What the BF16 twins change by when vLLM takes its other attention kernel."""
    names = dict.fromkeys(each["twin_of"] for each in document["twins_by_triton_attention"])
    means = {
        (each["twin_of"], each["kv_dtype"]): number(each["mean_abs_difference"])
        for each in document["twins_by_triton_attention"]
    }
    rows = [(name, means[name, "bfloat16"], means[name, "fp8"]) for name in names]
    return markdown_table(("twin of", "KV BF16", "KV FP8"), rows)


def row(name: str, mode: str, cases: dict[str, Any]) -> tuple[str, ...]:
    """One file started one way; what is not said about the KV dtype is of BF16."""
    plain = cases["bfloat16"]
    if plain["outcome"] == "refused":
        return (name, mode, f"refused: {plain['message']}", *[""] * (len(HEADER) - 3))
    own = max(plain["own_differences"].values())
    exact = plain["from_fp32"] or {}
    return (
        name,
        mode,
        difference(plain),
        difference(cases["fp8"]),
        f"{own:.4f}",
        *(number(exact[side]["mean"]) if exact else "" for side in ("checkpoint", "twin")),
        f"{plain['greedy']['equal']} of {plain['greedy']['texts']}",
    )


def difference(case: dict[str, Any]) -> str:
    """The mean difference of a case that ran, else why it did not."""
    if "mean_abs_difference" in case:
        return number(case["mean_abs_difference"])
    return "not run" if case["outcome"] == "not_run" else "refused"


def number(value: float | None) -> str:
    """Four digits; nothing where a value was not finite."""
    return "not finite" if value is None else f"{value:.4f}"


def main() -> int:
    """Rewrite the page, or say whether it is right."""
    document = json.loads(RESULT.read_text(encoding="utf-8"))
    tables = {"agreement": agreement(document), "attention": attention(document)}
    return rewrite(PAGE, tables)


if __name__ == "__main__":
    sys.exit(main())

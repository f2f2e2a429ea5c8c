"""Writes the tables of docs/planning.md: worked cases by ``hy3 plan`` itself, figures from results.

python tools/plan_tables.py            # rewrites the parts between their marks, and the picture
python tools/plan_tables.py --check    # exits 1 if the page or the picture shows anything else
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from hy3.cli.app import app  # noqa: E402
from hy3.report.markdown import markdown_table  # noqa: E402
from marked import written  # noqa: E402
from support.real_models import HY3, HY_MT2  # noqa: E402 - the published configurations
from support.sparse import write_sparse  # noqa: E402

PAGE = ROOT / "docs" / "planning.md"
PICTURE = ROOT / "docs" / "pictures" / "plan_memory.svg"
RESULTS = ROOT / "benchmarks" / "results"
Row = tuple[str, ...]

# Case, model as the command names it, and the command's options.
SPARKS = "--hardware 2xgb10 --context 131072"
FP8_ATTENTION = "--recipe experts-nvfp4-attn-fp8"
CASES = (
    ("two Sparks", "Hy3-NVFP4", f"{SPARKS} --concurrency 6 --kv-dtype fp8"),
    ("two Sparks, one stream", "Hy3-NVFP4", f"{SPARKS} --kv-dtype fp8"),
    ("the same with FP8 attention", "Hy3", f"{FP8_ATTENTION} {SPARKS} --kv-dtype fp8"),
    ("one B300", "Hy3-NVFP4", "--hardware b300 --context 131072 --concurrency 6"),
    ("Hy-MT2-30B, 24 GB card", "Hy-MT2-30B-NVFP4", "--hardware rtx-4090 --context 8192"),
    ("Hy-MT2-30B, 32 GB card", "Hy-MT2-30B-NVFP4", "--hardware rtx-5090 --context 32768"),
    ("Hy-MT2-30B, one Spark, BF16", "Hy-MT2-30B-A3B", "--hardware gb10 --context 32768"),
    ("Hy-MT2-30B, one Spark, NVFP4", "Hy-MT2-30B-NVFP4", "--hardware gb10 --context 32768"),
)
# What the roofline lacks, for each pair that it answers wrongly; one without a word is an error.
LACKS = {
    ("72", "78"): "SGLang's NEXTN: acceptance not stated, and the answer is wrong even at 0.47; a "
    "draft must cost more there than its bytes",
    ("73", "76"): "piecewise graphs; two hundredths are within what repeated runs differ by",
    (
        "42",
        "44",
    ): "the drafter ran eager beside graphs (vLLM issue 48766), 9 ms a draft; a floor of "
    "its own for such drafters was tried, and the rows of other sources do not support more than "
    "the common one",
}


def load(name: str) -> dict[str, Any]:
    """One result file."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def percent(share: float, digits: int = 0) -> str:
    """``0.168`` -> ``17 %``."""
    return f"{share * 100:.{digits}f} %"


def cases() -> Iterator[Row]:
    """The commands, run on the published configurations."""
    yield "case", "command", "answer"
    with tempfile.TemporaryDirectory() as folder:
        for case, name, options in CASES:
            yield case, f"`hy3 plan {name} {options}`", answer(model(Path(folder), name), options)


def model(folder: Path, name: str) -> tuple[str, ...]:
    """Arguments that stand for a name: its config and a recipe, or headers in BF16."""
    path, raw = folder / name, HY3 if name.startswith("Hy3") else HY_MT2
    if name == "Hy-MT2-30B-A3B":
        return (str(write_sparse(path, raw, shards=1)),)
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return (str(path), "--recipe", "experts-nvfp4") if "NVFP4" in name else (str(path),)


def answer(named: Sequence[str], options: str) -> str:
    """What the command says, in one line."""
    run = CliRunner().invoke(app, ["plan", *named, *options.split(), "--json"])
    if run.exception is not None:
        raise run.exception
    plan = json.loads(run.stdout)
    memory, decode = plan["memory"], plan["decode"]
    return (
        f"{'fits' if plan['fits'] else 'does not fit'}: {memory['weight_bytes'] / 2**30:.1f} GiB "
        f"of weights a rank, {memory['kv_tokens']} tokens of KV cache; "
        f"{decode['stream_tok_s']:.1f} tok/s a stream "
        f"({decode['stream_low']:.1f} to {decode['stream_high']:.1f})"
        f"{', low confidence' if decode['confidence'].startswith('low: ') else ''}"
    )


def picture() -> bytes:
    """The memory of the first case."""
    _, name, options = CASES[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory.svg"
        answer(model(Path(folder), name), f"{options} --picture {path}")
        return path.read_bytes()


def times() -> Iterator[Row]:
    """How long reading and planning takes."""
    found = load("plan_time")
    yield "headers", "processor time, median", "best", "wall time, median"
    for key, label in (("nvfp4", "Hy3 in NVFP4, 139,298 tensors"), ("bf16", "Hy3 in BF16, 47,138")):
        cpu, wall = found[key]["processor_s"], found[key]["wall_s"]
        yield label, *(f"{each:.2f} s" for each in (cpu["median"], cpu["best"], wall["median"]))


def memory() -> Iterator[Row]:
    """The plan beside published runs and real engines."""
    published = load("plan_memory")
    yield "planned against", "what", "compared", "largest difference"
    for key, what in (
        ("weights", "GiB of weights on a GPU"),
        ("kv_tokens", "KV tokens, where the utilization is stated"),
    ):
        worst = max(abs(each["error"]) for each in published[key])
        yield "published Hy3 rows", what, f"{len(published[key])} rows", percent(worst, 1)
    for device, engine, what in (
        ("cpu", "vLLM 0.32 on a CPU", "hy3-tiny and other shapes, BF16"),
        ("h200", "vLLM 0.26 on one H200", "Hy-MT2-30B and 40 layers of Hy3, BF16 and NVFP4"),
    ):
        run = load(f"plan_kv_tokens_{device}")["cases"]
        depths = sorted({each["case"]["drafts"] for each in run})
        worst = max(abs(each["kv_tokens"]["error"]) for each in run)
        what = f"KV tokens of {what}, KV in BF16 and FP8, {depths[0]} to {depths[-1]} drafts"
        yield engine, what, f"{len(run)} engines", percent(worst, 2)


def steps() -> Iterator[Row]:
    """Decode steps that the H200's engines took, beside what the plan says of them."""
    yield "model", "mode", "drafts", "one stream", "planned", "eight streams", "planned"
    for each in load("plan_kv_tokens_h200")["cases"]:
        case, found = each["case"], each.get("step_ms")
        if found:
            form = {"experts-nvfp4": "NVFP4", "bf16": "BF16"}[case["recipe"]]
            name = f"{case['dimensions']} in {form}, {case['layers']} layers"
            times = (f"{found[n][of]:.2f} ms" for n in ("1", "8") for of in ("measured", "planned"))
            yield name, case["mode"], str(case["drafts"]), *times


def accuracy() -> Iterator[Row]:
    """Every row predicted by constants that did not see its source."""
    found = load("plan_accuracy")
    summary, points = found["summary"], found["summary"]["point_error"]
    judged = sum(row["answer"] == "interval" for row in found["rows"])
    pairs = Counter(pair["answer"] for pair in found["pairs"])

    def point(group: str) -> str:
        rows = f"{points[group]['rows']} rows"
        return f"{percent(points[group]['median'])}, {percent(points[group]['p90'])} of {rows}"

    def counted(word: str, share: float) -> str:
        return f"{percent(share)} ({pairs[word]} of {summary['pairs']})"

    inside = f"{percent(summary['inside_share'])} of {judged} rows"
    yield "figure", "goal", "found"
    yield "measured speed inside its interval", ">= 80 %", inside
    yield "half-width of the interval, median", "<= 30 %", percent(summary["median_half_width"])
    yield "error of the point, GB10, median and 90th percentile", "20 %, 45 %", point("gb10")
    yield "error of the point, own H200 runs", "20 %, 45 %", point("own_h200")
    yield (
        "pairs of one source that differ in one setting: faster one named wrongly",
        "<= 15 %",
        counted("wrong", summary["pairs_wrong_share"]),
    )
    yield (
        "the same: cannot tell",
        "<= 40 %",
        counted("cannot tell", summary["pairs_cannot_tell_share"]),
    )


def wrong_pairs() -> Iterator[Row]:
    """The pairs whose faster one is named wrongly: how fast the second is beside the first."""
    found = load("plan_accuracy")
    rows = {row["id"]: row for row in found["rows"]}
    yield "pair", "second beside first, measured", "predicted", "what the roofline lacks"
    for pair in found["pairs"]:
        if pair["answer"] != "wrong":
            continue
        first, second = (rows[name] for name in pair["rows"])
        key = {"draft_depth": "draft_depth", "graphs": "mode"}[pair["differs_in"]]
        word = "drafts " if key == "draft_depth" else ""
        streams = "1 stream" if first["concurrency"] == 1 else f"{first['concurrency']} streams"
        yield (
            f"{first['model']} on {first['device']}, {streams}: {word}{first[key]} and "
            f"{second[key]} (rows {', '.join(pair['rows'])})",
            *(
                f"{(1 / pair[side] - 1) * 100:+.0f} %"
                for side in ("measured_ratio", "predicted_ratio")
            ),
            LACKS[tuple(pair["rows"])],
        )


TABLES = {
    "times": times,
    "memory": memory,
    "steps": steps,
    "accuracy": accuracy,
    "wrong pairs": wrong_pairs,
    "cases": cases,
}


def page(text: str) -> str:
    """The page with its tables written anew."""
    parts = {}
    for name, table in TABLES.items():
        header, *rows = table()
        parts[name] = markdown_table(header, rows)
    return written(text, parts)


def main() -> int:
    """Write, or compare."""
    text = PAGE.read_text(encoding="utf-8")
    new, drawn = page(text), picture()
    if "--check" in sys.argv:
        return int(new != text or drawn != PICTURE.read_bytes())
    PAGE.write_text(new, encoding="utf-8")
    PICTURE.write_bytes(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())

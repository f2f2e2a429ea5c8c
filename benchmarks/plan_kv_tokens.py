"""Planned memory against what a real vLLM finds: KV tokens, weights, graphs, the rest.

    python benchmarks/plan_kv_tokens.py [--vllm PYTHON] [--device cpu|h200] [--seconds N] [--speed]

Every case is an engine in a process of its own, one after another, on a checkpoint of this
repository or on a config.json alone, whose weights vLLM then makes up. The result is written after
each case, beside those of cases that were measured before. On a CPU vLLM takes the size of its
cache as given, so only the tokens that fit it are compared; on a GPU it measures a forward pass,
and everything is.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hy3.checkpoint.forms import BF16
from hy3.checkpoint.model_config import parse_config
from hy3.checkpoint.names import expected_tensors
from hy3.checkpoint.scheme_writer import quantization_config
from hy3.hardware.device import parse_hardware
from hy3.plan.calibration import load_calibrations
from hy3.plan.footprint import Footprint, footprint
from hy3.plan.model_shape import ModelShape, shape_of_forms
from hy3.plan.roofline import Workload, mode_of, predict_decode
from hy3.plan.settings import VLLM, Settings
from hy3.quantize.assignment import assign
from hy3.quantize.export import export_config
from hy3.quantize.recipe import load_recipe
from record import ROOT, provenance, record

sys.path.insert(0, str(ROOT / "tests"))

from support.real_models import HY3, HY_MT2

TINY = ROOT / "models" / "hy3-tiny"
CPU_CACHE_BYTES = 2**30
SEQUENCES = 64
GOAL = 0.10
ENGINE_SECONDS = 150
LEAST_SECONDS = 25  # what an engine needs at the least
LOGGED = {
    "log_kv_tokens": r"KV cache size: ([\d,]+) tokens",
    "log_graph_gib": r"([\d.]+) GiB for CUDAGraph memory",
    "log_moe_backend": r"Using '?(\w+)'? NvFp4 MoE backend",
}
# What a model's config.json says otherwise than that of hy3-tiny.
DIMENSIONS: dict[str, dict[str, Any]] = {
    "Hy3": HY3,
    "Hy-MT2-30B": HY_MT2,
    "hy3-tiny": {},
    "4 KV heads of 128": {"num_key_value_heads": 4, "head_dim": 128},
    "11 layers": {"num_hidden_layers": 11, "max_position_embeddings": 32768},
}


@dataclass(frozen=True)
class Case:
    """One engine."""

    dimensions: str
    layers: int  # of the trunk; one MTP layer comes after them
    recipe: str = "bf16"  # or one of ``recipe_names``
    context: int = 32768
    utilization: float = 0.9
    kv_dtype: str = "bf16"
    drafts: int = 0
    mode: str = "eager"  # or "graphs" (no compiler), "compiled" (vLLM's default)
    batched_tokens: int = 8192
    dummy: bool = True  # False: hy3-tiny's own weights

    @property
    def config(self) -> dict[str, Any]:
        """config.json, with a quantization_config where the recipe has one."""
        raw = json.loads((TINY / "config.json").read_text()) | DIMENSIONS[self.dimensions]
        raw |= {"num_hidden_layers": self.layers}
        if self.recipe == "bf16":
            return raw
        config = parse_config(raw)
        assignment = assign(config, load_recipe(self.recipe), "same", "compressed-tensors")
        written = quantization_config(config, assignment.forms, assignment.layout)
        return json.loads(export_config(raw, written))

    def shape(self) -> ModelShape:
        """What the plan is made from: the config and the recipe, no file."""
        config = parse_config(self.config)
        if self.recipe == "bf16":
            forms = dict.fromkeys(expected_tensors(config), BF16)
        else:
            recipe = load_recipe(self.recipe)
            forms = assign(config, recipe, "same", "compressed-tensors").forms
        return shape_of_forms(f"{self.dimensions} x{self.layers}", config, forms)

    def settings(self) -> Settings:
        """The same launch for the plan."""
        return Settings(
            engine=VLLM,
            kv_dtype=self.kv_dtype,
            context=self.context,
            concurrency=SEQUENCES,
            draft_depth=self.drafts,
            graphs=self.mode != "eager",
            batched_tokens=self.batched_tokens,
            utilization=self.utilization,
        )


_MT2 = Case("Hy-MT2-30B", 48, "experts-nvfp4")
_HY3 = Case("Hy3", 40, "experts-nvfp4", drafts=1)  # half of its layers fit one H200
# The first cases tell most: with little time the last are left out.
GPU_CASES = (
    _MT2,
    replace(_MT2, mode="graphs"),
    replace(_HY3, mode="graphs"),
    Case("Hy-MT2-30B", 48),
    replace(_HY3, kv_dtype="fp8"),
    replace(_MT2, drafts=1, mode="graphs", kv_dtype="fp8", utilization=0.5),
    replace(_HY3, drafts=0, context=4096),
    replace(_HY3, drafts=0, mode="graphs"),
    replace(_MT2, context=4096, mode="compiled"),
    replace(_HY3, drafts=2, mode="graphs"),
    Case("Hy-MT2-30B", 48, context=4096, utilization=0.5, kv_dtype="fp8", mode="graphs"),
    replace(_MT2, batched_tokens=2048, drafts=1),
    replace(_HY3, layers=24, utilization=0.5, kv_dtype="fp8", drafts=0, context=4096),
    replace(_MT2, recipe="experts-nvfp4-attn-fp8", mode="graphs"),
    replace(_HY3, layers=24, utilization=0.5, mode="graphs"),
)
_CPU = Case("hy3-tiny", 5, context=4096, dummy=False, batched_tokens=2048)
CPU_CASES = (
    *(replace(_CPU, kv_dtype=kv, drafts=drafts) for kv in ("bf16", "fp8") for drafts in (0, 1)),
    Case("4 KV heads of 128", 5, context=4096, batched_tokens=2048),
    Case("4 KV heads of 128", 5, context=2048, batched_tokens=2048, kv_dtype="fp8", drafts=2),
    Case("11 layers", 11, context=16384, batched_tokens=2048, drafts=1),
    Case("11 layers", 11, context=4096, batched_tokens=2048, kv_dtype="fp8"),
    Case("Hy-MT2-30B", 2, context=4096, batched_tokens=512, drafts=1),
)


class Engine:
    """A process that imports vLLM at once and starts its engine when told to."""

    def __init__(self, case: Case, number: int, options: argparse.Namespace, work: Path) -> None:
        self.case = case
        stem = work / f"case{number:02}"
        self.log, self.out = stem.with_suffix(".log"), stem.with_suffix(".json")
        job = stem.with_suffix(".job")
        job.write_text(json.dumps(self._job(options, work / f"model{number:02}")))
        script = str(Path(__file__).with_name("vllm_memory.py"))
        with self.log.open("w") as stream:
            self.process = subprocess.Popen(
                [options.vllm, script, str(job), str(self.out)],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
                text=True,
            )

    def _job(self, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
        case = self.case
        if case.dummy:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text(json.dumps(case.config, indent=1))
        return {
            "model": str(folder if case.dummy else TINY),
            "dummy": case.dummy,
            "kv_cache_dtype": "bfloat16" if case.kv_dtype == "bf16" else case.kv_dtype,
            "drafts": case.drafts,
            "context": case.context,
            "batched_tokens": case.batched_tokens,
            "sequences": SEQUENCES,
            "utilization": case.utilization,
            "mode": case.mode,
            "cache_bytes": CPU_CACHE_BYTES if options.device == "cpu" else 0,
            "speed": options.speed,
            # A CPU has no kernel for it.
            "uniform_routing": options.speed and options.device != "cpu",
        }

    def measure(self, seconds: float) -> dict[str, Any]:
        """What it found, what its log says, or how it ended without either."""
        try:
            self.process.communicate("start\n", timeout=seconds)
            ended = f"exit {self.process.returncode}"
        except subprocess.TimeoutExpired:
            self.stop()
            ended = "stopped: it took too long"
        text = self.log.read_text(errors="replace")
        found = {name: re.findall(pattern, text) for name, pattern in LOGGED.items()}
        logged = {name: values[-1] for name, values in found.items() if values}
        if not self.out.exists():
            last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
            return {"refused": f"{ended}: {last.strip()}"}
        return json.loads(self.out.read_text()) | logged

    def stop(self) -> None:
        """Also where it was never started."""
        self.process.kill()
        self.process.communicate()


def compare(case: Case, device: str, found: dict[str, Any]) -> dict[str, Any]:
    """Planned and measured side by side, sizes in bytes."""
    memory = footprint(case.shape(), parse_hardware("h200").device, case.settings())
    line: dict[str, Any] = {"case": vars(case), "engine": found}
    if "blocks" not in found:
        return line
    tokens = found["blocks"] * found["block_tokens"]
    planned = CPU_CACHE_BYTES // memory.kv_bytes_per_token if device == "cpu" else memory.kv_tokens
    line["kv_tokens"] = _pair(planned, tokens)
    return line if device == "cpu" else line | _terms(memory, found) | _steps(case, found)


def _terms(memory: Footprint, found: dict[str, Any]) -> dict[str, Any]:
    planned = {term.name: term.nbytes for term in memory.others}
    return {
        "weights": _pair(memory.weight_bytes, found["weight_bytes"]),
        "budget": _pair(memory.budget_bytes, found["requested_memory"]),
        "cache": _pair(memory.kv_bytes, found["available_kv_cache_memory_bytes"]),
        "workspace": _pair(planned["workspace"], found["peak_activation_memory"]),
        "libraries": _pair(planned["libraries"], found["non_torch_memory"]),
        "graphs": _pair(planned.get("graphs", 0), found["cudagraph_memory_estimate"]),
    }


def _steps(case: Case, found: dict[str, Any]) -> dict[str, Any]:
    """Predicted and measured decode steps by number of streams; weights made up accept no draft.

    Eager steps are left out: the processor sets their time, and it was busy with other engines.
    """
    if "speed" not in found or case.mode == "eager":
        return {}
    h200, steps = parse_hardware("h200"), {}
    for streams, run in found["speed"].items():
        settings = replace(case.settings(), concurrency=int(streams))
        context = run["prompt_tokens"] + run["new_tokens"] // 2
        workload = Workload(context, (0.0,) * case.drafts)
        calibration = load_calibrations()[h200.device.kind, mode_of(settings)]
        predicted = predict_decode(case.shape(), h200, settings, workload, calibration)
        times = _pair(round(predicted.step_s * 1e3, 3), run["step_ms"])
        low, high = (1 + times["error"]) / predicted.high, (1 + times["error"]) / predicted.low
        steps[streams] = times | {"inside": low <= 1 <= high}
    return {"step_ms": steps}


def _pair(planned: float, measured: float | None) -> dict[str, Any]:
    error = round(planned / measured - 1, 4) if measured else None
    return {"planned": planned, "measured": measured, "error": error}


def summarise(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What the comparison is judged by."""
    errors = [abs(line["kv_tokens"]["error"]) for line in lines if "kv_tokens" in line]
    steps = [step for line in lines for step in line.get("step_ms", {}).values()]
    summary = {
        "cases": len(lines),
        "compared": len(errors),
        "kv_tokens_within_10_percent": sum(error <= GOAL for error in errors),
        "largest_error": max(errors, default=None),
    }
    if steps:
        summary |= {"steps": len(steps), "steps_inside": sum(step["inside"] for step in steps)}
    return summary


def run(cases: list[Case], options: argparse.Namespace, work: Path) -> Iterator[dict[str, Any]]:
    """A line for each case that there is time for.

    The next process imports while one measures, unless that is timed: it takes the processor.
    """
    end = time.monotonic() + options.seconds
    following: Engine | None = None
    for number, case in enumerate(cases):
        left = end - time.monotonic()
        if left < LEAST_SECONDS:
            break
        engine = following or Engine(case, number, options, work)
        ahead = number + 1 < len(cases) and not options.speed
        following = Engine(cases[number + 1], number + 1, options, work) if ahead else None
        found = engine.measure(min(left, options.engine_seconds))
        tokens = found.get("blocks", 0) * found.get("block_tokens", 0)
        told = found.get("refused", f"{tokens} tokens of KV cache, {found.get('speed', '')}")
        print(f"{vars(case)}\n  {found.get('seconds')} s: {told}"[:600], flush=True)
        yield {"case": vars(case), "engine": provenance() | found}
    if following is not None and following.process.poll() is None:
        following.stop()


def save(lines: list[dict[str, Any]], options: argparse.Namespace) -> Path:
    """Judge what was measured by the plan as it is now, and record it."""
    before = json.loads(options.out.read_text()) if options.out.exists() else {}
    kept = [old for old in before.get("cases", []) if old["case"] not in [n["case"] for n in lines]]
    judged = [
        compare(Case(**line["case"]), options.device, line["engine"]) for line in [*kept, *lines]
    ]
    facts = next((line["engine"] for line in lines if "versions" in line["engine"]), None)
    hardware, versions = before.get("hardware"), before.get("versions")
    if facts is not None:
        hardware, versions = {"gpu": facts["gpu"]} if facts["gpu"] else {}, facts["versions"]
    results = {"summary": summarise(judged), "cases": judged}
    return record(f"plan_kv_tokens_{options.device}", results, options.out, hardware, versions)


def main() -> None:
    """Measure and leave benchmarks/results/plan_kv_tokens_DEVICE.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", default=sys.executable, help="Python that has vLLM")
    parser.add_argument("--device", choices=("cpu", "h200"), default="cpu")
    parser.add_argument("--cases", type=int, nargs="*", help="their numbers; none: judge again")
    parser.add_argument("--seconds", type=int, default=1200, help="for everything together")
    parser.add_argument("--engine-seconds", type=int, default=ENGINE_SECONDS)
    parser.add_argument("--speed", action="store_true", help="time decode steps as well")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--work", type=Path, default=None, help="keep logs here")
    options = parser.parse_args()
    results = ROOT / "benchmarks" / "results"
    options.out = options.out or results / f"plan_kv_tokens_{options.device}.json"
    cases = CPU_CASES if options.device == "cpu" else GPU_CASES
    numbers = range(len(cases)) if options.cases is None else options.cases
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        work = options.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        for line in run([cases[number] for number in numbers], options, work):
            lines.append(line)
            save(lines, options)
    save(lines, options)
    for line in json.loads(options.out.read_text())["cases"]:
        print(line["case"], line.get("kv_tokens"))
    print(options.out)


if __name__ == "__main__":
    main()

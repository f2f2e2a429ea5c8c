"""Whether the real vLLM reads our checkpoints as we do: hy3-tiny in every recipe and layout.

    python benchmarks/vllm_agreement.py [--at-once N] [--seconds N] [--only NAME ...] [--attention]

Every checkpoint is made here and compared with its BF16 twin (``hy3 dequantize``), each in an
engine of its own with drafts on: log-probabilities of held-out text, greedy text, acceptance. What
the twin changes under other batch shapes is the engine's own noise; how far both are from fp32
arithmetic over the same weights says which is nearer. Checkpoints with a planted fault must not
pass. With ``--attention`` twins alone, by either attention kernel: noise of the engine's choice.
Needs vLLM beside hy3, so an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from exact_logprobs import exact_logprobs
from hy3.checkpoint.file_hash import hash_file
from hy3.demo.held_out import held_out_documents
from record import provenance, record
from vllm_case import SHAPES
from vllm_faults import FAULTS, plant
from vllm_verdict import Answers, Twin, between, judge

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "hy3-tiny"
MODELOPT = ("--format", "modelopt")
# Name of a checkpoint -> options of ``hy3 quantize``: every recipe in every layout that can say it.
CHECKPOINTS: dict[str, tuple[str, ...]] = {
    "experts-nvfp4": (),
    "experts-nvfp4, ModelOpt": MODELOPT,
    "experts-nvfp4, MTP BF16": ("--mtp", "bf16"),
    "experts-nvfp4, MTP BF16, ModelOpt": ("--mtp", "bf16", *MODELOPT),
    "experts-nvfp4-attn-fp8": ("--recipe", "experts-nvfp4-attn-fp8"),
    "experts-nvfp4-attn-fp8, activations FP8": (
        *("--recipe", "experts-nvfp4-attn-fp8"),
        *("--fp8-activations", "dynamic"),
    ),
    "all-nvfp4": ("--recipe", "all-nvfp4"),
    "all-nvfp4, ModelOpt": ("--recipe", "all-nvfp4", *MODELOPT),
    "all-nvfp4, lm_head FP8": ("--recipe", "all-nvfp4", "--lm-head", "fp8"),
    "fp8": ("--recipe", "fp8"),
}
FAULTS_OF = "experts-nvfp4"
KV_DTYPES = ("bfloat16", "fp8")


@dataclass(frozen=True)
class Mode:
    """How an engine is started."""

    name: str
    drafts: int = 2
    environment: tuple[tuple[str, str], ...] = ()
    mend_bias: bool = False
    attention: str | None = None


PLAIN = Mode("as vLLM chooses")
# Without them a checkpoint loads whose MTP head this vLLM cannot exclude from the quantization.
NO_DRAFTS = Mode("without drafts", drafts=0)
# What cards take without FP8 units; a Hopper wants vLLM's own variables for it.
MARLIN = Mode(
    "FP8 by Marlin",
    environment=(
        ("VLLM_TEST_FORCE_FP8_MARLIN", "1"),
        ("VLLM_DISABLED_KERNELS", "HummingFP8ScaledMMLinearKernel"),
    ),
)
# What later releases take where humming is installed: 0.26 would, but for how it says "no bias".
HUMMING = Mode("FP8 by Humming, bias mended", mend_bias=True)
TRITON = Mode("attention by Triton", attention="TRITON_ATTN")
MORE_MODES: dict[str, tuple[Mode, ...]] = {
    **{name: (NO_DRAFTS,) for name, options in CHECKPOINTS.items() if MODELOPT[1] in options},
    "experts-nvfp4-attn-fp8": (MARLIN, HUMMING),
    "all-nvfp4, lm_head FP8": (MARLIN,),
}
AT_ONCE = 8
NEW_TOKENS = 48
LONGEST_START = 200
ENGINE_SECONDS = 240  # one engine, from its start to its answers
NOTHING = {"cases": [], "planted_faults": [], "source_against_twins": {}}
NO_TURN = ("not_run", "no_twin")
LEAST_SECONDS = 30  # what an engine needs at the least
MAKING_SECONDS = 200


@dataclass(frozen=True)
class Run:
    """One engine over one folder."""

    folder: Path
    kv_dtype: str
    mode: Mode = PLAIN
    shapes: tuple[str, ...] = ("together",)


def hy3(*arguments: str) -> None:
    """One command of this source tree."""
    program = "from hy3.cli.app import main; main()"
    subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=MAKING_SECONDS,
    )


def make_checkpoints(names: list[str], work: Path) -> dict[str, tuple[Path, Path]]:
    """Name -> (checkpoint, twin); checkpoints of the same numbers share one twin."""

    def make(name: str) -> tuple[Path, Path]:
        number = names.index(name)
        folder, twin = work / f"q{number}", work / f"t{number}"
        hy3("quantize", str(MODEL), str(folder), *CHECKPOINTS[name])
        hy3("dequantize", str(folder), str(twin))
        return folder, twin

    # One alone first: it compiles the kernels for the others.
    made = [make(names[0])]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made += pool.map(make, names[1:])
    twins: dict[tuple[str, ...], Path] = {}
    return {
        name: (folder, twins.setdefault(weight_hashes(twin), twin))
        for name, (folder, twin) in zip(names, made, strict=True)
    }


def weight_hashes(folder: Path) -> tuple[str, ...]:
    """What tells whether two folders hold the same weights."""
    return tuple(hash_file(path).sha256 for path in sorted(folder.glob("*.safetensors")))


def make_job(run: Run, documents: list[list[int]]) -> dict[str, Any]:
    """What one engine is asked; see ``vllm_case``."""
    generation = json.loads((run.folder / "generation_config.json").read_text())
    stop = generation["eos_token_id"]
    return {
        "model": str(run.folder),
        "kv_cache_dtype": run.kv_dtype,
        "drafts": run.mode.drafts,
        "attention": run.mode.attention,
        "environment": dict(run.mode.environment),
        "mend_bias": run.mode.mend_bias,
        "prompts": documents,
        "shapes": run.shapes,
        "starts": [ids[: min(len(ids) // 2, LONGEST_START)] for ids in documents],
        "new_tokens": NEW_TOKENS,
        "stop": stop if isinstance(stop, list) else [stop],
    }


Answered = dict[tuple[Path, str, Mode], Answers]


@dataclass(frozen=True)
class Engines:
    """How engines are started, each in a process of its own."""

    python: str  # of an environment with vLLM
    at_once: int
    deadline: float  # on the monotonic clock; engines that would start late are not run

    def ask_all(self, runs: list[Run], documents: list[list[int]], logs: Path) -> Answered:
        """Every run's answers."""
        with ThreadPoolExecutor(self.at_once) as pool:
            answers = list(pool.map(lambda run: self.ask(run, documents, logs), runs))
        keys = [(run.folder, run.kv_dtype, run.mode) for run in runs]
        return dict(zip(keys, answers, strict=True))

    def ask(self, run: Run, documents: list[list[int]], logs: Path) -> Answers:
        """One engine's answers; its log stays beside them."""
        left = self.deadline - time.monotonic()
        if left < LEAST_SECONDS:
            return Answers({"not_run": "there was no time left"}, "")
        mode = run.mode.name.replace(",", "").replace(" ", "-")
        stem = logs / f"{run.folder.name}-{run.kv_dtype}-{mode}"
        job, out, log = (stem.with_suffix(suffix) for suffix in (".job", ".json", ".log"))
        job.write_text(json.dumps(make_job(run, documents)))
        command = [self.python, str(Path(__file__).with_name("vllm_case.py")), str(job), str(out)]
        with log.open("w") as stream:
            try:
                code = subprocess.run(
                    command, stdout=stream, stderr=stream, timeout=min(left, ENGINE_SECONDS)
                ).returncode
            except subprocess.TimeoutExpired:
                if left < ENGINE_SECONDS:
                    return Answers({"not_run": "there was no time left"}, "")
                code = None
        text = log.read_text(errors="replace")
        result = json.loads(out.read_text()) if out.exists() else died(code, text)
        print(f"{stem.name}: {result.get('seconds', 'no')} s", flush=True)
        return Answers(result, text)


def died(code: int | None, log: str) -> dict[str, Any]:
    """The answers of an engine that left none."""
    how = "stopped: it took too long" if code is None else f"exit {code}"
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "")
    return {"refused": f"{how}: {last.strip()}"}


def twin_runs(twins: list[Path]) -> list[Run]:
    """Each twin's answers for all batch shapes."""
    return [Run(twin, kv, PLAIN, tuple(SHAPES)) for twin in twins for kv in KV_DTYPES]


def checkpoint_runs(made: dict[str, tuple[Path, Path]]) -> dict[str, list[Run]]:
    """Name -> its engines: one way, for some checkpoints several, with either KV dtype."""
    return {
        name: [
            Run(folder, kv, mode) for mode in (PLAIN, *MORE_MODES.get(name, ())) for kv in KV_DTYPES
        ]
        for name, (folder, _) in made.items()
    }


def measure(names: list[str], engines: Engines, work: Path) -> dict[str, Any]:
    """Make, ask and judge everything."""
    documents = held_out_documents(MODEL)
    made = make_checkpoints(names, work)
    faulty = {}
    if FAULTS_OF in made:
        for number, fault in enumerate(FAULTS):
            faulty[fault] = plant(MODEL, made[FAULTS_OF][0], work / f"f{number}", fault)
    twins = list(dict.fromkeys(twin for _, twin in made.values()))
    exact = {twin: exact_logprobs(twin, documents) for twin in twins}
    runs = checkpoint_runs(made)
    faulty_runs = {fault: [Run(folder, kv) for kv in KV_DTYPES] for fault, folder in faulty.items()}
    # Twins first: they answer for all shapes and take longest.
    every_run = chain(
        twin_runs(twins), [Run(MODEL, KV_DTYPES[0])], *runs.values(), *faulty_runs.values()
    )
    answers = engines.ask_all(list(every_run), documents, work)

    def verdict(run: Run, folder: Path) -> dict[str, Any]:
        of_twin = answers[folder, run.kv_dtype, PLAIN]
        twin = Twin(of_twin, exact[folder] if run.kv_dtype == KV_DTYPES[0] else None)
        how = {"kv_dtype": run.kv_dtype, "mode": run.mode.name}
        return how | provenance() | judge(answers[run.folder, run.kv_dtype, run.mode], twin)

    planted = [
        {"fault": fault} | verdict(run, made[FAULTS_OF][1])
        for fault, of_fault in faulty_runs.items()
        for run in of_fault
    ]
    source = answers[MODEL, KV_DTYPES[0], PLAIN]
    return {
        "engine": source.result,
        "model": MODEL.name,
        "documents": len(documents),
        "prompt_tokens": sum(len(ids) - 1 for ids in documents),
        "drafts": PLAIN.drafts,
        "cases": [
            {"checkpoint": name} | verdict(run, made[name][1])
            for name, of_name in runs.items()
            for run in of_name
        ],
        "planted_faults": planted,
        "source_against_twins": {
            name: between(source, answers[twin, KV_DTYPES[0], PLAIN])
            for name, (_, twin) in made.items()
        },
    }


def measure_attention(names: list[str], engines: Engines, work: Path) -> dict[str, Any]:
    """Every twin by two attention kernels, and the steps that a batch shape took."""
    documents = held_out_documents(MODEL)
    made = make_checkpoints(names, work)
    twins = list(dict.fromkeys(twin for _, twin in made.values()))
    others = [Run(twin, kv, TRITON) for twin in twins for kv in KV_DTYPES]
    answers = engines.ask_all(twin_runs(twins) + others, documents, work)

    def found(twin: Path, kv: str) -> dict[str, Any]:
        plain, other = (answers[twin, kv, mode] for mode in (PLAIN, TRITON))
        how = {"kv_dtype": kv, "steps": plain.result.get("steps"), "kernels": other.kernels()}
        return how | provenance() | between(plain, other)

    return {
        "engine": answers[twins[0], KV_DTYPES[0], PLAIN].result,
        "twins_by_triton_attention": [
            {"twin_of": name} | found(twin, kv)
            for name, (_, twin) in made.items()
            for kv in KV_DTYPES
        ],
    }


def keep_earlier(results: dict[str, Any], earlier: dict[str, Any]) -> None:
    """Cases that this run left out stay as an earlier one found them, with what they say of it."""
    for kind in ("cases", "planted_faults"):
        merged = {case_name(case): case for case in earlier[kind]}
        for case in results.get(kind, []):
            if case["outcome"] not in NO_TURN or case_name(case) not in merged:
                merged[case_name(case)] = case
        results[kind] = list(merged.values())
    sources = "source_against_twins"
    results[sources] = earlier[sources] | results.get(sources, {})
    of_the_run = {*provenance(), "hardware", "versions"}
    for key in earlier.keys() - of_the_run:
        results.setdefault(key, earlier[key])


def case_name(case: dict[str, Any]) -> tuple[str, str, str]:
    """What tells one case from another."""
    return case.get("checkpoint") or case["fault"], case["mode"], case["kv_dtype"]


def main() -> None:
    """Measure and leave benchmarks/results/vllm_agreement.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", default=sys.executable, help="Python that has vLLM")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="engines side by side")
    parser.add_argument("--seconds", type=int, default=1800, help="for everything together")
    parser.add_argument("--only", nargs="+", default=list(CHECKPOINTS), metavar="NAME")
    parser.add_argument("--attention", action="store_true", help="twins by two attention kernels")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--earlier", type=Path, help="a result whose cases stay where none is new")
    parser.add_argument("--work", type=Path, default=None, help="keep checkpoints and logs here")
    arguments = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        work = arguments.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        engines = Engines(arguments.vllm, arguments.at_once, begin + arguments.seconds)
        task = measure_attention if arguments.attention else measure
        results = task(arguments.only, engines, work)
    results["seconds"] = round(time.monotonic() - begin)
    earlier = arguments.earlier
    keep_earlier(results, json.loads(earlier.read_text()) if earlier else NOTHING)
    results["faults_that_passed"] = [
        case["fault"] for case in results["planted_faults"] if case["outcome"] == "agrees"
    ]
    facts = results.pop("engine")
    hardware, versions = {"gpu": facts.get("gpu")}, facts.get("versions")
    path = record("vllm_agreement", results, arguments.out, hardware, versions)
    for case in results["cases"] + results["planted_faults"]:
        name = case.get("checkpoint") or case["fault"]
        kinds = ("mean_abs_difference", "own_differences", "from_fp32", "message")
        numbers = [case[kind] for kind in kinds if case.get(kind) is not None]
        print(f"{name} | {case['kv_dtype']} | {case['mode']} | {case['outcome']} | {numbers}")
    print(path)


if __name__ == "__main__":
    main()

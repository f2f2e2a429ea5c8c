"""hy3 quantize beside llm-compressor and ModelOpt on the same generated checkpoints.

    python benchmarks/peers_quantize.py --llmcompressor PYTHON --modelopt PYTHON
    python benchmarks/peers_quantize.py --device cuda ...      # the peers on a GPU
    python benchmarks/peers_quantize.py --only hy3             # only these rows, keeps the rest

Each tool runs in a child process, by the Python that has it (this one unless told otherwise), after
its source was read once. Every output is judged by peers_judge.py. A preset is run --repeat times,
slow ones once; a row keeps the run of the least processor time, and the wall times of all. Rows are
merged into an earlier result of the same machine. On a GPU hy3's rows are those of the CPU there:
quantize does its search on the CPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from child_usage import Usage, run_measured
from peers_checkpoint import raw_config, write_checkpoint
from peers_judge import judge
from record import ROOT, provenance, record

HERE = Path(__file__).resolve().parent
ERROR_CHARACTERS = 300
LOG_CHARACTERS = 4000


@dataclass(frozen=True)
class Preset:
    """One way to quantize, and where it is worth running."""

    tool: str
    name: str
    slow_on_cpu: bool = False  # there only S, once
    worth_l_on_cpu: bool = False


PRESETS = (
    Preset("hy3", "max", worth_l_on_cpu=True),
    Preset("hy3", "four-over-six", worth_l_on_cpu=True),
    Preset("hy3", "exact", worth_l_on_cpu=True),
    Preset("llmcompressor", "default", worth_l_on_cpu=True),
    Preset("llmcompressor", "memoryless_mse", slow_on_cpu=True),
    Preset("llmcompressor", "nvfp4_expanded_mse", slow_on_cpu=True),
    Preset("llmcompressor", "oneshot", worth_l_on_cpu=True),
    Preset("modelopt", "max", worth_l_on_cpu=True),
    Preset("modelopt", "four-over-six"),
    Preset("modelopt", "mse"),
    Preset("modelopt", "sweep"),
)


class Bench:
    """One invocation's checkpoints and settings."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self._options, self._work = options, work
        self.checkpoints: dict[str, dict[str, Any]] = {}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every wanted row, judged, with its checkpoint made once a size."""
        for size in self._options.sizes:
            source = self._work / size
            self.checkpoints[size] = write_checkpoint(source, size)
            for preset in self._wanted(size):
                yield self._row(size, source, preset)
            shutil.rmtree(source)

    def _wanted(self, size: str) -> list[Preset]:
        everywhere = size == "S" or self._options.device == "cuda"
        return [
            preset
            for preset in PRESETS
            if f"{preset.tool}:{preset.name}".startswith(tuple(self._options.only))
            and (everywhere or preset.worth_l_on_cpu)
        ]

    def _row(self, size: str, source: Path, preset: Preset) -> dict[str, Any]:
        out, report = self._work / "out", self._work / "report.json"
        slow = preset.slow_on_cpu and self._options.device == "cpu"
        runs: list[Usage] = []
        reports: list[dict[str, Any]] = []  # what the tool's own process says of each
        for _ in range(1 if slow else self._options.repeat):
            shutil.rmtree(out, ignore_errors=True)
            report.unlink(missing_ok=True)
            _read_once(source)
            command = self._command(preset, source, out, report)
            runs.append(run_measured(command, self._work / "log", self._options.timeout))
            if runs[-1].exit_status:
                break
            reports.append(json.loads(report.read_text()) if report.exists() else {})
        best = min(range(len(runs)), key=lambda index: runs[index].cpu_s)
        row = {
            "size": size,
            "tool": preset.tool,
            "preset": preset.name,
            **provenance(),
            "load_1min_after": round(os.getloadavg()[0], 1),
            "wall_s_of_runs": [run.wall_s for run in runs],
            "cpu_s_of_runs": [run.cpu_s for run in runs],
            **_measured(runs[best]),
        }
        if runs[-1].exit_status:
            print(runs[-1].output[-LOG_CHARACTERS:], file=sys.stderr)
            return row | {"error": _last_error(runs[-1].output)}
        row["out_bytes"] = sum(path.stat().st_size for path in out.glob("*.safetensors"))
        return row | reports[best] | judge(source, out, raw_config(size)["num_hidden_layers"])

    def _command(self, preset: Preset, source: Path, out: Path, report: Path) -> list[str]:
        if preset.tool == "hy3":
            verb = [sys.executable, "-m", "hy3", "quantize", str(source), str(out)]
            return [*verb, "--scales", preset.name]
        script = str(HERE / f"peers_{preset.tool}.py")
        python = getattr(self._options, preset.tool)
        return [
            python,
            script,
            str(source),
            str(out),
            preset.name,
            self._options.device,
            str(report),
        ]


def _measured(run: Usage) -> dict[str, Any]:
    fields = dataclasses.asdict(run)
    del fields["output"]
    return fields


def _read_once(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb", buffering=0) as file:
            while file.read(2**24):
                pass


def _last_error(output: str) -> str:
    """The last line that names an exception, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
    named = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception"))]
    return (named or lines)[-1][:ERROR_CHARACTERS]


def earlier(path: Path, processor: str) -> dict[str, Any]:
    """The checkpoints and rows that ``path`` holds already; exits if of another machine."""
    if not path.exists():
        return {"checkpoints": {}, "rows": []}
    old: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if old["hardware"]["processor"] != processor:
        sys.exit(f"{path} is of another machine: {old['hardware']['processor']}")
    return old


def merged(
    old: dict[str, Any], checkpoints: dict[str, Any], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Earlier results with new rows in place of those of the same name, in a fixed order.

    A row of the same version of a peer stays if it took less processor time: a busy machine only
    adds to it. hy3's own rows are always replaced, since its code changes.
    """
    for size in old["checkpoints"].keys() & checkpoints.keys():
        if old["checkpoints"][size] != checkpoints[size]:
            sys.exit(f"earlier rows are of another checkpoint {size}: start a new result file")
    known = {_key(row): row for row in old["rows"]}
    for row in rows:
        before = known.get(_key(row), row)
        same = row["tool"] != "hy3" and before.get("versions") == row.get("versions")
        known[_key(row)] = min(before, row, key=lambda each: each["cpu_s"]) if same else row
    order = [(size, each.tool, each.name) for size in ("S", "L") for each in PRESETS]
    return {
        "checkpoints": old["checkpoints"] | checkpoints,
        "rows": [known[key] for key in order if key in known],
    }


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return row["size"], row["tool"], row["preset"]


def _gpu(device: str) -> dict[str, Any]:
    if device == "cpu":
        return {}
    import torch

    return {"gpu": torch.cuda.get_device_name()}


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--sizes", type=lambda text: text.split(","), default=["S", "L"])
    parser.add_argument(
        "--only", nargs="+", default=[""], help="beginnings of TOOL:PRESET, such as hy3"
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=2400, help="seconds of one run")
    parser.add_argument("--llmcompressor", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--modelopt", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--work", type=Path, help="where checkpoints lie meanwhile")
    parser.add_argument("--results", type=Path, help="the JSON to write")
    return parser.parse_args(arguments)


def main() -> None:
    """Run, judge, and leave benchmarks/results/peers_quantize_<cpu or gpu>.json."""
    from hy3.cli.env import gather_environment

    options = options_of()
    name = f"peers_quantize_{'gpu' if options.device == 'cuda' else 'cpu'}"
    path = options.results or ROOT / "benchmarks" / "results" / f"{name}.json"
    processor = gather_environment()["processor"]
    old = earlier(path, processor)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        bench = Bench(options, Path(folder))
        for row in bench.rows():
            print(json.dumps(row), flush=True)
            rows.append(row)
            results = {"device": options.device, **merged(old, bench.checkpoints, rows)}
            record(name, results, path, hardware=_gpu(options.device))
    print(path)


if __name__ == "__main__":
    main()

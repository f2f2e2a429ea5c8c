"""What ``hy3 doctor`` tries out, on real things: a GPU at work, the real vLLM, a link.

    python benchmarks/doctor_trials.py link                          # two namespaces; needs root
    python benchmarks/doctor_trials.py gpu [--seconds 20]            # needs an NVIDIA GPU
    python benchmarks/doctor_trials.py dry-load --python PYTHON      # PYTHON has vLLM

Each writes its own results; ``dry-load`` also plants faults into copies of hy3-tiny, and says for
each whether it was found. Quantized ones must load on a GPU, and be refused on a processor that
has no kernels for them.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hy3.doctor.checks import dry_load, load
from hy3.doctor.fabric import run_all_reduce
from hy3.doctor.host import gather_here
from hy3.doctor.software import gpus
from record import ROOT, record

TINY = ROOT / "models" / "hy3-tiny"
RUNS = 5
RECIPES = ("experts-nvfp4", "experts-nvfp4-attn-fp8", "fp8")


def main() -> None:
    """Run one of the three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("link", "gpu", "dry-load"))
    parser.add_argument("--python", default=sys.executable, help="the engine's Python")
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    if arguments.what == "link":
        name, results = "doctor_link", measure_link()
    elif arguments.what == "gpu":
        name, results = "doctor_gpu_load", work_gpus(arguments.python, arguments.seconds)
    else:
        name, results = "doctor_dry_load", load_dry(arguments.python)
    print(json.dumps(results, indent=1))
    print(record(name, results))


def measure_link() -> dict[str, Any]:
    """gloo between two namespaces, over a veth pair."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.two_nodes import ADDRESS_A, two_nodes

    runs = []
    with tempfile.TemporaryDirectory() as work, two_nodes(Path(work)) as nodes:
        leader, follower = (
            ["ip", "netns", "exec", namespace, "env", f"GLOO_SOCKET_IFNAME={device}"]
            for namespace, device in ((nodes.a, "va"), (nodes.b, "vb"))
        )
        for run in range(RUNS):
            python = ["OMP_NUM_THREADS=1", sys.executable]
            found = run_all_reduce([*leader, *python], [*follower, *python], ADDRESS_A, 29800 + run)
            small_us, gb_s = re.findall(r"in (\d+) us.* at ([\d.]+) GB/s", found.evidence)[0]
            runs.append({"small_us": int(small_us), "large_gb_s": float(gb_s)})
    return {
        "runs": runs,
        "small_us": statistics.median(run["small_us"] for run in runs),
        "large_gb_s": statistics.median(run["large_gb_s"] for run in runs),
    }


def work_gpus(python: str, seconds: float) -> dict[str, Any]:
    """Every check of a GPU at work, on this machine."""
    host = gather_here()
    start = time.monotonic()
    done = load.run_load(host, (python,), seconds)
    answers = {check.id: check.run(done) for check in load.CHECKS}
    return {
        "devices": [gpu.name for gpu in gpus(host)],
        "driver": sorted({gpu.driver for gpu in gpus(host)}),
        "asked_s": seconds,
        "took_s": round(time.monotonic() - start, 1),
        "checks": {name: [found.verdict, found.evidence] for name, found in answers.items()},
    }


def load_dry(python: str) -> dict[str, Any]:
    """hy3-tiny and quantized ones as they are, then copies with a fault each."""
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as work:
        cases.append(one_case(python, TINY, TINY.name, "CLEAN"))
        loads = "PROBLEM" if " on cpu " in cases[0]["evidence"] else "CLEAN"
        for recipe in RECIPES:
            folder = Path(work) / recipe
            quantize = [sys.executable, "-m", "hy3", "quantize", str(TINY), str(folder)]
            subprocess.run([*quantize, "--recipe", recipe, "--quiet"], check=True)
            cases.append(one_case(python, folder, recipe, loads))
        for name, plant in FAULTS.items():
            folder = Path(work) / name.replace(" ", "-")
            shutil.copytree(TINY, folder)
            plant(folder)
            cases.append(one_case(python, folder, name, "PROBLEM"))
    return {"cases": cases, "as_expected": sum(each["as_expected"] for each in cases)}


def one_case(python: str, folder: Path, name: str, expected: str) -> dict[str, Any]:
    """What the check says of one folder."""
    start = time.monotonic()
    found = dry_load.CHECKS[0].run(dry_load.run_dry_load(folder, (python,)))
    case = {
        "case": name,
        "verdict": found.verdict,
        "evidence": found.evidence,
        "as_expected": found.verdict == expected,
        "seconds": round(time.monotonic() - start, 1),
    }
    print(json.dumps(case), flush=True)
    return case


def edit_header(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite the header of the shard that holds layer 1; the data stays as it is."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    path = folder / index[_LAYER_1]
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


_LAYER_1 = "model.layers.1.mlp.shared_mlp.up_proj.weight"
_EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"


def _rename(header: dict[str, Any]) -> None:
    header[_LAYER_1.replace("shared_mlp", "shared_experts")] = header.pop(_LAYER_1)


def _plant_format(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "no-such-method"}
    (folder / "config.json").write_text(json.dumps(config))


FAULTS: dict[str, Callable[[Path], None]] = {
    "one expert's tensor missing": lambda f: edit_header(f, lambda h: h.pop(_EXPERT) and None),
    "a tensor under the newer name": lambda f: edit_header(f, _rename),
    "a tensor nobody knows": lambda f: edit_header(
        f, lambda h: h.update({"model.layers.1.extra": h[_LAYER_1]})
    ),
    "another shape": lambda f: edit_header(f, lambda h: h[_EXPERT].update(shape=[64, 256])),
    "an unknown format": _plant_format,
}


if __name__ == "__main__":
    main()

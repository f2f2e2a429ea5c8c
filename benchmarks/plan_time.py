"""How long ``hy3 plan`` takes on the headers of tencent/Hy3 and of its NVFP4 form.

The files are sparse: headers are real in number, names, shapes and size, data are holes. Each run
is a process of its own; the file cache is warm, as after a download.

    python benchmarks/plan_time.py
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import ROOT, record

RUNS = 11
GOAL_S = 1.0


def main() -> None:
    """Measure both forms and record."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.real_models import HY3
    from support.sparse import write_sparse

    results: dict[str, Any] = {"goal_s": GOAL_S, "runs": RUNS, "load_average": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as scratch:
        for name, packed in (("bf16", False), ("nvfp4", True)):
            folder = write_sparse(Path(scratch) / name, HY3, packed=packed)
            results[name] = measure(folder)
            print(name, results[name])
    print(record("plan_time", results))


def measure(folder: Path) -> dict[str, Any]:
    """Wall and processor time of the whole command, its start included."""
    command = [sys.executable, "-m", "hy3", "plan", str(folder), "--hardware", "2xgb10"]
    walls, processor = [], []
    for _ in range(RUNS):
        used = _children_s()
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        walls.append(time.perf_counter() - start)
        processor.append(_children_s() - used)
    return {"wall_s": _spread(walls), "processor_s": _spread(processor)}


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _spread(seconds: list[float]) -> dict[str, float]:
    return {
        "best": round(min(seconds), 3),
        "median": round(statistics.median(seconds), 3),
        "worst": round(max(seconds), 3),
    }


if __name__ == "__main__":
    main()

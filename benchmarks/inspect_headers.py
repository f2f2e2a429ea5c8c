"""``hy3 inspect`` on files with the headers of tencent/Hy3 and of its NVFP4 form.

The files are sparse: headers are real in number, names, shapes and size, data are holes, and
inspect reads no data. Each run is a process of its own; the file cache is warm.

    python benchmarks/inspect_headers.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import ROOT, record

RUNS = 5


def main() -> None:
    """Measure both forms and record."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.real_models import HY3
    from support.sparse import write_sparse

    results: dict[str, Any] = {"runs": RUNS, "load_average": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as scratch:
        for name, packed in (("bf16", False), ("nvfp4", True)):
            folder = write_sparse(Path(scratch) / name, HY3, packed=packed)
            results[name] = measure(folder)
            print(name, results[name])
    print(record("inspect_headers", results))


def measure(folder: Path) -> dict[str, Any]:
    """Best and all wall times, and what the command counted."""
    command = [sys.executable, "-m", "hy3", "inspect", str(folder), "--json"]
    walls = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        walls.append(round(time.perf_counter() - start, 3))
    found = json.loads(run.stdout)
    return {
        "wall_s": {"best": min(walls), "all": walls},
        "totals": found["totals"],
        "missing": len(found["missing"]),
        "unexpected": len(found["unexpected"]),
    }


if __name__ == "__main__":
    main()

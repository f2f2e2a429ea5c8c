"""Start-up of the command: wall time of ``hy3 --help`` and ``--version``, and what they import.

Warm is with compiled bytecode in place, as on every start but the first. Cold is the first start
after an install: nothing compiled (an empty bytecode cache for each run); the file cache of the
operating system stays warm in both.

    python benchmarks/startup.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from record import record

RUNS = 20
COLD_RUNS = 5
LIMIT_S = 0.5
HEAVY = ("torch", "numba", "fastapi", "transformers", "pydantic", "numpy", "aiohttp", "rich")
LIST_IMPORTS = """
import json, sys
sys.argv = ["hy3", {option!r}]
from hy3.cli.app import main
try:
    main()
except SystemExit:
    pass
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""


def main() -> None:
    """Measure, record, and fail when a warm ``--help`` is over the limit."""
    results: dict[str, Any] = {"limit_s": LIMIT_S, "runs": RUNS, "cold_runs": COLD_RUNS}
    for option in ("--help", "--version"):
        wall_s([], option)  # compiles what is not compiled yet
        warm = [wall_s([], option) for _ in range(RUNS)]
        cold = [cold_wall_s(option) for _ in range(COLD_RUNS)]
        imports = imported_packages(option)
        results[option.lstrip("-")] = {
            "warm_s": spread(warm),
            "cold_s": spread(cold),
            "packages_imported": [name for name in imports if not is_standard(name)],
            "heavy_imported": [name for name in HEAVY if name in imports],
        }
    print(record("startup", results))
    median_s = results["help"]["warm_s"]["median"]
    print(f"hy3 --help: {median_s:.3f} s (limit {LIMIT_S} s)")
    if median_s > LIMIT_S:
        sys.exit(1)


def wall_s(python_options: list[str], option: str) -> float:
    """Seconds from start to end of one run of the command."""
    command = [sys.executable, *python_options, "-m", "hy3", option]
    start_s = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start_s


def cold_wall_s(option: str) -> float:
    """The same with an empty bytecode cache."""
    with tempfile.TemporaryDirectory() as folder:
        return wall_s(["-X", f"pycache_prefix={folder}"], option)


def imported_packages(option: str) -> list[str]:
    """Top-level modules loaded after the command has run."""
    script = LIST_IMPORTS.format(option=option)
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return list(json.loads(run.stdout.splitlines()[-1]))


def is_standard(name: str) -> bool:
    """Whether a module belongs to Python itself."""
    return name in sys.stdlib_module_names or name.startswith("_")


def spread(seconds: list[float]) -> dict[str, float]:
    """Median and extremes, rounded to the millisecond."""
    return {
        "median": round(statistics.median(seconds), 3),
        "min": round(min(seconds), 3),
        "max": round(max(seconds), 3),
    }


if __name__ == "__main__":
    main()

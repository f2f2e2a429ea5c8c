"""Time from starting Python to a first token: once with an empty JIT cache, then warm.

python benchmarks/first_token.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import record

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 5.0
GENERATE = """
import sys
from pathlib import Path
from hy3.engine.engine import Engine, EngineConfig
from hy3.engine.request import Request, SamplingParams
from hy3.model.decoder import load_model
engine = Engine(load_model(Path(sys.argv[1])), EngineConfig(num_blocks=64, max_context=512))
engine.add(Request("first", tuple(range(40)), SamplingParams(max_tokens=4, temperature=0)))
(output,) = engine.step()
print(output.token_ids[0])
"""


def main() -> int:
    """Measure, write the result, and say whether warm starts are under the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "hy3-tiny")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        cold = start(arguments.model, cache)
        warm = [start(arguments.model, cache) for _ in range(arguments.runs)]
    results = {
        "model": arguments.model.name,
        "cold_s": round(cold, 2),
        "warm_s": [round(seconds, 2) for seconds in warm],
        "warm_median_s": round(statistics.median(warm), 2),
        "limit_s": LIMIT_S,
        "ok": statistics.median(warm) <= LIMIT_S,
    }
    print(results, record("first_token", results, arguments.out))
    return 0 if results["ok"] else 1


def start(model: Path, cache: str) -> float:
    """Seconds of one process from its start to its end after the first token."""
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", GENERATE, str(model)],
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())

"""``hy3 verify`` on a generated checkpoint whose experts have tencent/Hy3's dimensions.

Two MoE layers (one of them the MTP layer) of 8 experts: 604 MB of routed experts in BF16. Wall and
CPU seconds of the whole command, imports included, and the peak of its anonymous memory.

    python benchmarks/verify_speed.py
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import ROOT, record

DIMENSIONS = {
    "hidden_size": 4096,
    "expert_hidden_dim": 1536,
    "moe_intermediate_size": 1536,
    "num_experts": 8,
    "num_hidden_layers": 2,
    "intermediate_size": 512,
}
HY3 = [sys.executable, "-m", "hy3"]
_ANONYMOUS = re.compile(r"RssAnon:\s+(\d+) kB")


def main() -> None:
    """Generate, quantize, verify with and without the source, record."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.scripted import make_random

    with tempfile.TemporaryDirectory() as scratch:
        source = make_random(Path(scratch) / "source", seed=1, **DIMENSIONS)
        out = Path(scratch) / "out"
        quantized = run_measured([*HY3, "quantize", str(source), str(out), "--json", "--quiet"])
        verify = [*HY3, "verify", str(out), "--json", "--quiet"]
        results: dict[str, Any] = {
            "dimensions": DIMENSIONS,
            "source_bytes": quantized["result"]["source_bytes"],
            "output_bytes": quantized["result"]["output_bytes"],
            "load_average": os.getloadavg()[0],
        }
        for name, command in (
            ("alone", verify),
            ("with_source", [*verify, "--source", str(source)]),
        ):
            run_measured(command)  # compiles, and warms the file cache
            measured = run_measured(command)
            result = measured.pop("result")
            measured["ok"] = result["ok"]
            measured["error_by_class"] = result["error_by_class"]
            results[name] = measured
            print(name, measured)
    print(record("verify_speed", results))


def run_measured(command: list[str]) -> dict[str, Any]:
    """Run a command that prints JSON; its times and the peak of its RssAnon, sampled."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    peak_kib = 0
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output)
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            found = _ANONYMOUS.search(status.read_text())
            peak_kib = max(peak_kib, int(found[1]) if found else 0)
            time.sleep(0.01)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        output.seek(0)
        text = output.read()
    assert process.returncode == 0, text
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2),
        "peak_anonymous_mb": round(peak_kib * 1024 / 1e6, 1),
        "result": json.loads(text),
    }


if __name__ == "__main__":
    main()

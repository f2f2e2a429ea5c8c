"""`hy3 demo`: the whole path on the bundled model, and faults that must make it fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.scripted import make_random

NAMES = [
    "quantize",
    "verify",
    "serve",
    "chat",
    "tool call",
    "bench, one draft",
    "bench, no drafts",
    "compare with BF16",
]


def demo(*options: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "hy3", "demo", "--json", "--quiet", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def statuses(result: dict[str, Any]) -> dict[str, str]:
    return {step["name"]: step["status"] for step in result["steps"]}


def flip_a_byte(path: Path) -> None:
    """Change the last byte of the file and keep its size and times, as bit rot would."""
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x10
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_every_step_holds_on_the_bundled_model(tmp_path: Path) -> None:
    status, result = demo("--out", str(tmp_path))
    assert status == 0, [step for step in result["steps"] if step["status"] != "held"]
    assert statuses(result) == dict.fromkeys(NAMES, "held")
    on, off = (result[name]["runs"] for name in ("bench_drafts_on", "bench_drafts_off"))
    assert [run["concurrency"] for run in on] == [run["concurrency"] for run in off] == [1, 6]
    assert result["divergence"]["kl_mean"] > 0
    assert result["chat"]["reasoning"] and "632" in result["chat"]["content"]


def test_an_untrained_model_and_a_changed_byte_fail(tmp_path: Path) -> None:
    """Random weights are quantized and served well but cannot answer; a changed byte shows."""
    model, out = make_random(tmp_path / "model"), tmp_path / "out"
    status, result = demo("--model", str(model), "--out", str(out))
    assert status == 1
    found = statuses(result)
    assert [found[name] for name in NAMES[:5]] == ["held", "held", "held", "failed", "not run"]

    flip_a_byte(max((out / "model-nvfp4").glob("*.safetensors")))
    status, result = demo("--model", str(model), "--out", str(out))
    assert status == 1
    found = statuses(result)
    assert (found["verify"], found["serve"]) == ("failed", "not run")

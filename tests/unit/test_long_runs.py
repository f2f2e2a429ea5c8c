"""The record of a long run names each test, its outcome and the seed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

@pytest.mark.long
def test_good(): assert True

@pytest.mark.long
def test_bad(): assert False

def test_short(): raise RuntimeError
"""


def test_a_run_is_recorded_and_its_failure_is_told(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(TESTS)
    out = tmp_path / "out.json"
    script = [sys.executable, "tools/test_long.py", "--seed", "7", "--out", str(out)]
    run = subprocess.run([*script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1
    found = json.loads(out.read_text())
    assert (found["seed"], found["passed"], found["of"]) == (7, 1, 2)
    ends = {test["test"].rpartition("::")[2]: test["outcome"] for test in found["tests"]}
    assert ends == {"test_good": "passed", "test_bad": "failed"}
    assert {"command", "date", "commit"} <= found.keys()

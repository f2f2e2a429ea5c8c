"""The record of a run names each test, its outcome and the seed; what was skipped is no test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

@pytest.mark.long
def test_good(): assert True

@pytest.mark.long
def test_bad(): assert False

def test_short(): raise RuntimeError
"""


ELSEWHERE = """
import pytest

pytest.importorskip("no_such_package")

@pytest.mark.long
def test_never(): assert False
"""


def run(tmp_path: Path, script: str, *arguments: str) -> tuple[int, Path]:
    out = tmp_path / "out.json"
    command = [sys.executable, f"tools/{script}", *arguments, "--out", str(out), str(tmp_path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).returncode, out


def test_a_run_is_recorded_and_its_failure_is_told(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(TESTS)
    (tmp_path / "test_planted_elsewhere.py").write_text(ELSEWHERE)
    code, out = run(tmp_path, "test_long.py", "--seed", "7")
    assert code == 1
    found = json.loads(out.read_text())
    assert (found["seed"], found["passed"], found["of"], found["skipped"]) == (7, 1, 2, 1)
    ends = {test["test"].rpartition("::")[2]: test["outcome"] for test in found["tests"]}
    skipped = next(name for name in ends if name.endswith("test_planted_elsewhere"))
    assert ends == {"test_good": "passed", "test_bad": "failed", skipped: "skipped"}
    assert {"command", "date", "commit"} <= found.keys()


def test_a_run_of_nothing_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "test_planted_elsewhere.py").write_text(ELSEWHERE)
    code, out = run(tmp_path, "test_long.py")
    assert code != 0 and not out.exists()


def test_tests_of_another_environment_name_what_it_holds(tmp_path: Path) -> None:
    """This environment has no vLLM, so that of the tests that need it none runs but a planted."""
    (tmp_path / "test_planted.py").write_text("def test_good(): pass\n")
    code, out = run(tmp_path, "test_elsewhere.py", "peers", "--python", sys.executable)
    found = json.loads(out.read_text())
    modules = len(list((ROOT / "tests" / "peers").glob("test_*.py")))
    assert modules >= 3
    assert (code, found["passed"], found["of"], found["skipped"]) == (0, 1, 1, modules)
    assert found["versions"]["vllm"] is None and found["versions"]["pytest"] == pytest.__version__

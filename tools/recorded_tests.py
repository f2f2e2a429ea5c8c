"""Runs tests with pytest and records what became of each; for tests that `make test` leaves out."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from record import record  # noqa: E402 - the scripts under benchmarks/ are no package


def run_recorded(
    name: str,
    python: str,
    arguments: Sequence[str],
    out: Path | None,
    facts: dict[str, Any],
    **of_record: Any,
) -> int:
    """Record ``name`` and return pytest's status; nothing is recorded, and 1, where nothing ran.

    Args:
        python: the interpreter, which need not have hy3 installed
        arguments: of pytest
        out: another place of the result
        facts: what the result says besides
        of_record: ``hardware`` and ``versions``, as ``record`` takes them
    """
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [python, "-m", "pytest", f"--junitxml={report}", *arguments]
        code = subprocess.run(command, cwd=ROOT, env=environment).returncode
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    results = results_of(cases)
    if not results["of"]:
        print(f"no test of {name} ran, and nothing is recorded", file=sys.stderr)
        return code or 1
    print(record(name, facts | results, out, **of_record))
    return code


def results_of(cases: Sequence[ElementTree.Element]) -> dict[str, Any]:
    """Of those that ran how many passed, and every one by name.

    What was skipped is counted apart: of a module that asks for a package, pytest reports the
    module and not its tests.
    """
    tests = [
        {
            "test": f"{case.get('classname')}::{case.get('name')}".removeprefix("::"),
            "outcome": outcome(case),
            "seconds": float(case.get("time", "0")),
        }
        for case in cases
    ]
    ends = [test["outcome"] for test in tests]
    skipped = ends.count("skipped")
    counts = {"passed": ends.count("passed"), "of": len(ends) - skipped, "skipped": skipped}
    return counts | {"tests": tests}


def outcome(case: ElementTree.Element) -> str:
    """How one test ended, in pytest's words."""
    for word in ("failure", "error", "skipped"):
        if case.find(word) is not None:
            return {"failure": "failed"}.get(word, word)
    return "passed"

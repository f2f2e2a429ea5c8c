"""Runs the tests marked long and records what became of each, with the seed and the commit.

python tools/test_long.py [--seed N]       # what `make test-long` calls
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from record import record  # noqa: E402 - the scripts under benchmarks/ are no package


def outcome(case: ElementTree.Element) -> str:
    """How one test ended, in pytest's words."""
    for word in ("failure", "error", "skipped"):
        if case.find(word) is not None:
            return {"failure": "failed"}.get(word, word)
    return "passed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--out", type=Path, default=None)
    options, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "long", f"--junitxml={report}"]
        command += [f"--hypothesis-seed={options.seed}", *more]
        code = subprocess.run(command, cwd=ROOT).returncode
        cases = list(ElementTree.parse(report).iter("testcase"))
    tests = [
        {
            "test": f"{case.get('classname')}::{case.get('name')}",
            "outcome": outcome(case),
            "seconds": float(case.get("time", "0")),
        }
        for case in cases
    ]
    passed = sum(test["outcome"] == "passed" for test in tests)
    results = {"seed": options.seed, "passed": passed, "of": len(tests), "tests": tests}
    print(record("test_long", results, options.out))
    return code


if __name__ == "__main__":
    sys.exit(main())

"""The README says what the result files say, and names only what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_of_results_is_that_of_the_files():
    command = [sys.executable, str(ROOT / "tools" / "results_table.py"), "--check"]
    assert subprocess.run(command).returncode == 0, "run python tools/results_table.py"


def test_every_link_leads_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 15
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]


def test_every_command_exists():
    from hy3.cli.app import VERBS

    named = set(re.findall(r"^    (?:hy3|make) (\w+)", README, re.MULTILINE)) - {"test"}
    # ``env`` is for reports of faults; CONTRIBUTING names it.
    assert named == VERBS.keys() - {"env"}


def test_it_is_short():
    assert README.count("\n") <= 200

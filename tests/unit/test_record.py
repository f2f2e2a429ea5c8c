"""``benchmarks/record.py``: what a result says of itself."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import record  # noqa: E402 - the scripts under benchmarks/ are no package

RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


def machine_paths(text: str) -> list[str]:
    """Absolute paths: nobody else has what the measuring machine kept there."""
    return re.findall(r"(?:^|[\s\"'=(])(/\w[\w.-]*/[^\s\"']*)", text)


@pytest.mark.parametrize(
    "text", ['"python x.py /mnt/a/b"', '"--out=/var/c/d"', '"/opt/e/f"', "log in '/srv/g/h'"]
)
def test_a_planted_path_is_seen(text):
    assert len(machine_paths(text)) == 1
    assert machine_paths("https://a.b/c/d x/y/z 12 GB/s 3/4 and/or/both") == []


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (
            [f"{ROOT}/benchmarks/x.py", "disk", "--folder", "/mnt/a"],
            "benchmarks/x.py disk --folder a",
        ),
        (
            [f"{ROOT}/tools/tiny/y.py", "bf16=models/m", "q=/mnt/q"],
            "tools/tiny/y.py bf16=models/m q=q",
        ),
        (["/elsewhere/z.py", "--only", "a/b", "-"], "z.py --only a/b -"),
    ],
)
def test_a_command_is_that_of_the_root_and_names_no_folder_elsewhere(arguments, command):
    assert record.command(arguments) == f"python {command}"


def test_a_copy_without_history_is_told_its_commit(monkeypatch):
    monkeypatch.setenv("HY3_COMMIT", "0123456789ab")
    assert record.provenance()["commit"] == "0123456789ab"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_result_says_where_it_comes_from(path):
    text = path.read_text(encoding="utf-8")
    assert machine_paths(text) == []
    result = json.loads(text)
    assert result["commit"] != "unknown" and result["date"].endswith("UTC")
    script = result["command"].split()[1]
    assert (ROOT / script).is_file(), "the command must run in the root"

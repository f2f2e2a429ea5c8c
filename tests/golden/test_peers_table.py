"""docs/quantize.md says of the other quantizers what the result files say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "benchmarks" / "results").glob("peers_quantize_*.json"))


def rows_of(path):
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {(row["size"], row["tool"], row["preset"]): row for row in rows}


def test_the_tables_are_those_of_the_files():
    command = [sys.executable, str(ROOT / "tools" / "peers_table.py"), "--check"]
    assert subprocess.run(command).returncode == 0, "run python tools/peers_table.py"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_prose_holds(path):
    rows = {key: row for key, row in rows_of(path).items() if "error" not in row}
    assert rows
    # Our bytes are the same on every machine; the other file has the sizes that this one lacks.
    ours = {key: row for other in FILES for key, row in rows_of(other).items()} | rows
    for (size, tool, preset), row in rows.items():
        has_model = tool == "modelopt" or preset == "oneshot"
        assert row["mtp_kept"] == (0 if has_model else row["mtp_tensors"])
        agreeing = row["pairs_agreeing"] == row["pairs"]
        assert agreeing == (tool == "hy3" or has_model)
        assert row["others_identical"] == row["others"] - (17 if has_model else 0)
        exact = ours[size, "hy3", "exact"]["relative_error"]
        if preset == "sweep":
            assert row["relative_error"] == pytest.approx(exact, rel=0.01)
        elif preset == "nvfp4_expanded_mse":
            assert exact < row["relative_error"] < 1.05 * exact
        elif tool != "hy3":
            assert row["relative_error"] > exact

"""``hy3 quantize`` and ``hy3 dequantize`` as commands: JSON, exit codes, plan, resumption."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.scripted import make_random


def hy3(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hy3", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random(tmp_path_factory.mktemp("cli") / "model", seed=7)


def test_there_and_back(source: Path, tmp_path: Path) -> None:
    dry = hy3("quantize", source, tmp_path / "out", "--dry-run", "--json")
    assert dry.returncode == 0, dry.stderr
    plan = json.loads(dry.stdout)
    assert os.listdir(tmp_path) == []
    prediction = plan["prediction"]
    assert prediction["needed_bytes"] == plan["output_bytes"] < prediction["free_bytes"]
    assert prediction["bound_by"] in ("read", "compute", "write")
    run = hy3("quantize", source, tmp_path / "out", "--json", "--workers", "2")
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["schema"] == "hy3.quantize/1"
    assert result["output_bytes"] == plan["output_bytes"]
    errors = ("relative_squared_error", "relative_squared_error_max_rule", "change_percent")
    for planned, made in zip(plan["classes"], result["classes"], strict=True):
        assert {key: made[key] for key in planned} | dict.fromkeys(errors) == planned
        error, max_error, change = (made[key] for key in errors)
        if made["quantized"]:
            assert 0 < error < max_error and change == pytest.approx(100 * (error / max_error - 1))
        else:
            assert error is max_error is change is None
    back = hy3("dequantize", tmp_path / "out", tmp_path / "twin", "--json")
    assert back.returncode == 0, back.stderr
    assert json.loads(back.stdout)["lossless"] is True
    verified = hy3("verify", tmp_path / "out", "--source", source, "--json")
    assert verified.returncode == 0, verified.stdout
    statuses = {check["status"] for check in json.loads(verified.stdout)["checks"]}
    assert statuses == {"pass"}


def test_errors_have_their_exit_codes(source: Path, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    for arguments, code, word in [
        (("quantize", source, tmp_path / "used"), 2, "not empty"),
        (("quantize", source, tmp_path / "out", "--scales", "best"), 2, "four-over-six"),
        (("quantize", tmp_path / "none", tmp_path / "out"), 2, "does not exist"),
        (("quantize", source, tmp_path / "used" / "file"), 2, "is not a folder"),
        (("quantize", source, tmp_path / "used" / "file" / "below"), 2, "is not a folder"),
        (("inspect", "~no-such-user"), 2, "does not exist"),
        (("verify", source, "--source", "org/name"), 2, "a local folder"),
    ]:
        run = hy3(*arguments)
        assert run.returncode == code and word in run.stderr
        assert "Traceback" not in run.stderr and "hint:" in run.stderr
    assert os.listdir(tmp_path / "used") == ["file"]


def test_home_is_expanded_in_every_path(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(os.path.abspath, sys.path)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").symlink_to(source)
    assert hy3("quantize", "~/source", "~/out", "--quiet").returncode == 0
    assert hy3("verify", "~/out", "--source", "~/source", "--quiet").returncode == 0
    assert hy3("dequantize", "~/out", "~/twin", "--quiet").returncode == 0
    visible = sorted(name for name in os.listdir(tmp_path) if not name.startswith("."))
    assert visible == ["out", "source", "twin"]  # beside caches of libraries

"""The command's frame: version, unknown options, errors as text and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hy3 import __version__
from hy3.cli.output import Output, print_error
from hy3.errors import CheckFailed, EnvironmentFault, Hy3Error, InputError


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hy3.cli.app", *arguments], capture_output=True, text=True
    )


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"hy3 {__version__}")


def test_unknown_option_is_a_usage_error() -> None:
    done = run("env", "--no-such-option")
    assert done.returncode == 2
    assert "--no-such-option" in done.stderr


def test_env_json_is_one_object() -> None:
    done = run("env", "--json")
    facts = json.loads(done.stdout)
    assert facts["schema"] == "hy3.env/1"
    assert facts["hy3"] == __version__
    assert facts["cores"] >= 1


@pytest.mark.parametrize(
    ("kind", "code"), [(InputError, 2), (EnvironmentFault, 3), (CheckFailed, 1), (Hy3Error, 1)]
)
def test_errors_carry_exit_code_and_hint(
    kind: type[Hy3Error], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    error = kind("is broken", hint="mend it", where="a.json")
    assert error.exit_code == code
    print_error(error, as_json=True)
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["where"] == "a.json"
    assert captured.err == "error: a.json: is broken\nhint: mend it\n"


def test_json_keeps_stdout_for_data(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=True)
    output.text("for people")
    output.table(["a"], [["b"]])
    output.status("on the way")
    output.result("thing", {"value": 1})
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"schema": "hy3.thing/1", "value": 1}
    assert captured.err == "on the way\n"

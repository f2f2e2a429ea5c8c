"""The command's frame: version, unknown options, errors as text and as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hy3 import __version__
from hy3.cli.app import main
from hy3.cli.output import Output, print_error
from hy3.errors import CheckFailed, EnvironmentFault, Hy3Error, InputError


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "hy3", *arguments], capture_output=True, text=True)


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"hy3 {__version__}")


def test_unknown_option_is_a_usage_error() -> None:
    done = run("env", "--no-such-option")
    assert done.returncode == 2
    assert "--no-such-option" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "word", "command"),
    [
        (["env", "--bad"], "--bad", "hy3 env"),
        (["env", "more"], "more", "hy3 env"),
        (["inspect"], "model", "hy3 inspect"),
        (["quantize", "a", "b", "--workers", "0"], "--workers", "hy3 quantize"),
        (["quantize", "a", "b", "--workers", "x"], "--workers", "hy3 quantize"),
        (["no-such-verb"], "no-such-verb", "hy3"),
    ],
)
def test_usage_errors_have_the_form_of_all_errors(
    arguments: list[str], word: str, command: str
) -> None:
    done = run(*arguments, "--json")
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "input" and word in error["message"]
    assert error["hint"] == f"{command} --help says what it takes"
    assert done.stderr == f"error: {error['message']}\nhint: {error['hint']}\n"


def test_no_arguments_show_the_help() -> None:
    done = run()
    assert done.returncode == 0 and "quantize" in done.stdout


def test_an_interrupt_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hy3.cli.env.gather_environment", interrupted)
    monkeypatch.setattr(sys, "argv", ["hy3", "env", "--json"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["kind"] == "interrupted"
    assert captured.err.startswith("error: interrupted\n")


def test_names_that_are_no_text_are_shown_escaped(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff\xc3"
    command = [sys.executable, "-m", "hy3", "inspect", folder, "--json"]
    environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(command, capture_output=True, env=environment)
    assert done.returncode == 2
    where = json.loads(done.stdout.decode("ascii"))["error"]["where"]
    assert os.fsencode(where) == folder


@pytest.mark.parametrize("verb", ["inspect", "verify", "dequantize", "quantize"])
def test_a_path_that_no_system_takes_is_an_input_error(verb: str) -> None:
    done = run(verb, "a" * 5000, *(["out"] if verb in ("dequantize", "quantize") else []))
    assert done.returncode == 2
    assert "File name too long" in done.stderr.splitlines()[0]
    assert done.stderr.splitlines()[1].startswith("hint: ")


def test_what_the_system_refuses_names_its_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hy3.cli.env.gather_environment", Path("/nowhere/a").stat)
    monkeypatch.setattr(sys, "argv", ["hy3", "env"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 3
    assert capsys.readouterr().err == (
        "error: /nowhere/a: cannot be used (No such file or directory)\n"
        "hint: check the path and its permissions\n"
    )


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

"""A full, closed or abandoned standard output: one clear error or silence, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.tiny import TINY

HY3 = [sys.executable, "-m", "hy3"]
NO_SPACE = (
    "error: standard output: cannot be written (No space left on device)\n"
    "hint: free some space, or send the output elsewhere\n"
)

MODEL = str(TINY)
COMMANDS = [["--help"], ["--version"], ["env"], ["env", "--json"], ["inspect", MODEL]]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_full_device_is_an_environment_fault(arguments: list[str], unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*HY3, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert (done.returncode, done.stderr) == (3, NO_SPACE)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_reader_that_left_ends_the_command_in_silence(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*HY3, *arguments], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_error_itself_is_said_first() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*HY3, "inspect", "/nowhere", "--json"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 3
    assert done.stderr.startswith("error: /nowhere: does not exist\n")
    assert done.stderr.endswith(NO_SPACE)


@pytest.mark.parametrize("redirection", ["2>/dev/full", ">/dev/full 2>&1", "2>&-"])
def test_without_stderr_the_exit_code_still_tells(redirection: str) -> None:
    script = f'"$@" inspect /nowhere {redirection}'
    done = subprocess.run(["bash", "-c", script, "-", *HY3], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


def test_a_closed_stdout_is_said() -> None:
    done = subprocess.run(["bash", "-c", '"$@" env >&-', "-", *HY3], capture_output=True, text=True)
    assert done.returncode == 3 and "standard output: cannot be written" in done.stderr


def test_a_good_stdout_is_left_as_it_was() -> None:
    script = (
        "import sys\n"
        "from hy3.cli.stdout import guarded_stdout\n"
        "before = sys.stdout\n"
        "with guarded_stdout():\n"
        "    print('inside', flush=True)\n"
        "assert sys.stdout is before\n"
        "print('after')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "inside\nafter\n", "")

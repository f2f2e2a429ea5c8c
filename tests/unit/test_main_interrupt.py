"""Ctrl-C while ``hy3`` is still being imported: silence and 130, as a shell knows it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# SIGINT arrives when typer is about to be imported, which only the verbs ask for.
SCRIPT = """
import importlib.abc, os, signal, sys
class Press(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.{before})
sys.meta_path.insert(0, Press())
sys.argv = ["hy3", "--version"]
from hy3.__main__ import main
try:
    main()
finally:
    assert signal.getsignal(signal.SIGINT) is signal.{before}
"""


@pytest.mark.parametrize(
    ("before", "code", "said"), [("default_int_handler", 130, ""), ("SIG_IGN", 0, "hy3 ")]
)
def test_an_interrupt_during_the_import(before: str, code: int, said: str) -> None:
    script = SCRIPT.replace("{before}", before)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith(said) and bool(done.stdout) == bool(said)


def test_afterwards_an_interrupt_is_the_verb_s_again() -> None:
    script = SCRIPT.replace("{before}", "default_int_handler").replace('"typer"', '"none"')
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("hy3 ")
    assert signal.Signals.SIGINT + 128 == 130

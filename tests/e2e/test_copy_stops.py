"""``hy3 copy`` is stopped: no rsync goes on behind its back; and where it may send to."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hy3.checkpoint.file_hash import hash_file
from hy3.checkpoint.manifest import MANIFEST_NAME, Manifest
from support.recipes import PARAMETERS

pytestmark = pytest.mark.skipif(not shutil.which("rsync"), reason="rsync is not installed")

# In place of ssh: runs the command here, an rsync's only after a minute.
SSH = """#!/bin/sh
while [ "$1" != -- ] && [ "$1" != b ]; do shift; done
[ "$1" = -- ] && shift
shift
case "$*" in rsync*) exec sleep 60;; esac
exec sh -c "$*"
"""
# Engines that other tests have started on this machine would stop every copy.
SCRIPT = """
import sys
from hy3.cli.app import main
from hy3.deploy import copy
copy.engines_on = lambda node: []
sys.argv[0] = "hy3"
main()
"""


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    folder = tmp_path / "out"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / name).write_bytes(b"12")
    outputs = {name: hash_file(folder / name) for name in ("a", "b", "c")}
    (folder / MANIFEST_NAME).write_bytes(Manifest(PARAMETERS, {}, outputs).encode())
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    return [str(folder), "--nodes", "b", "--ssh", str(tmp_path / "ssh")]


def start(arguments: list[str], target: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "copy", *arguments, "--to", target],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def rsyncs(session: int) -> list[str]:
    """Command lines of the session's rsync processes."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == session:
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended meanwhile
            continue
    return [command for command in found if command.startswith("rsync ")]


def waits(session: int, wanted: bool, seconds: float = 20) -> bool:
    """Whether there are rsyncs, or none, before the time is over."""
    end = time.monotonic() + seconds
    while bool(rsyncs(session)) != wanted and time.monotonic() < end:
        time.sleep(0.05)
    return bool(rsyncs(session)) == wanted


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_no_rsync_outlives_the_command(
    arguments: list[str], tmp_path: Path, number: int, code: int
) -> None:
    """The signal reaches hy3 alone, as from a service manager; a terminal would tell all."""
    process = start(arguments, str(tmp_path / "there"))
    assert waits(process.pid, True)
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert process.returncode == code and said.splitlines()[-1].startswith("hint: ")
    assert waits(process.pid, False, 5)


@pytest.mark.parametrize("target", ["", "~/models", "~"])
def test_a_folder_that_no_shell_would_find_is_refused(arguments: list[str], target: str) -> None:
    process = start(arguments, target)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 2 and said.startswith("error: --to: ")

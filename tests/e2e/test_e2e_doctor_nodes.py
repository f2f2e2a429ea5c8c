"""``hy3 doctor --nodes`` over a real ssh, between two network namespaces with their own address."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.two_nodes import ADDRESS_B, environment, missing_tools, two_nodes

pytestmark = pytest.mark.skipif(bool(missing_tools()), reason=f"needs {', '.join(missing_tools())}")


def test_both_nodes_are_read_and_compared(tmp_path):
    with two_nodes(tmp_path) as nodes:
        program, options = shutil.which(nodes.ssh[0]), nodes.ssh[1:]
        stand_in = tmp_path / "bin" / "ssh"
        stand_in.parent.mkdir()
        stand_in.write_text(f'#!/bin/sh\nexec {shlex.quote(program)} {shlex.join(options)} "$@"\n')
        stand_in.chmod(0o755)
        surroundings = environment()
        surroundings["PATH"] = f"{stand_in.parent}:{surroundings['PATH']}"
        surroundings["PYTHONPATH"] = str(Path(__file__).resolve().parents[2] / "src")
        command = [sys.executable, "-m", "hy3", "doctor", "--json"]
        done = subprocess.run(
            nodes.on_a([*command, "--nodes", f"localhost,root@{ADDRESS_B}"]),
            capture_output=True,
            text=True,
            env=surroundings,
            timeout=120,
        )
    result = json.loads(done.stdout)
    there = [each for each in result["checks"] if each["where"] == f"root@{ADDRESS_B}"]
    assert len(there) > 15 and "node-unreachable" not in {each["id"] for each in there}
    kernel = set(result["nodes"]["kernel"].values())
    assert len(kernel) == 1 and kernel != {"unknown"}
    between = {each["id"]: each["verdict"] for each in result["checks"] if each["where"] == "all"}
    assert between["nodes-differ-in-kernel"] == "CLEAN"
    assert between["nodes-differ-in-driver"] == "NOT CHECKED"

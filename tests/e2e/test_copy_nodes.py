"""``hy3 copy`` between two network namespaces with disks of their own, and a cable that is cut."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hy3.checkpoint.file_hash import hash_file
from hy3.checkpoint.manifest import MANIFEST_NAME, Manifest
from support.recipes import PARAMETERS
from support.two_nodes import ADDRESS_B, TwoNodes, environment, missing_tools, run, two_nodes

pytestmark = [
    pytest.mark.skipif(bool(missing_tools()), reason=f"needs {', '.join(missing_tools())}"),
    pytest.mark.timeout(240),
]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as pair:
        yield pair


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished folder of six files, 12 MB that do not compress."""
    folder = tmp_path_factory.mktemp("copy") / "out"
    folder.mkdir()
    chance = np.random.default_rng(1)
    for index in range(6):
        data = chance.integers(0, 256, 2_000_000, np.uint8).tobytes()
        (folder / f"model 0000{index}.safetensors").write_bytes(data)
    outputs = {path.name: hash_file(path) for path in sorted(folder.iterdir())}
    manifest = Manifest(PARAMETERS, {}, outputs)
    (folder / MANIFEST_NAME).write_bytes(manifest.encode())
    return folder


def start(nodes: TwoNodes, out: Path, target: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hy3", "copy", str(out), "--to", str(target)]
    command += ["--nodes", f"root@{ADDRESS_B}", "--ssh", shlex.join(nodes.ssh), "--json", *more]
    source = str(Path(__file__).resolve().parents[2] / "src")
    return subprocess.Popen(
        nodes.on_a(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | {"PYTHONPATH": source},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, dict, str]:
    stdout, stderr = process.communicate(timeout=120)
    return process.returncode, json.loads(stdout or "{}"), stderr


def check_arrived(nodes: TwoNodes, out: Path, target: Path) -> None:
    assert not target.exists(), "the disk of node b is not to be seen here"
    sent = {path.name: path.read_bytes() for path in out.iterdir()}
    assert sent and {name: nodes.see(target / name) for name in sent} == sent


def test_everything_arrives_and_is_proved(nodes: TwoNodes, out: Path) -> None:
    target = nodes.disk / "whole copy"
    code, result, stderr = finish(start(nodes, out, target))
    assert code == 0, stderr
    done = result["nodes"][0]
    assert done["files"] == 7 and done["nbytes"] > 12_000_000
    assert done["sent_bytes"] == pytest.approx(done["nbytes"], rel=0.01)
    check_arrived(nodes, out, target)
    code, result, stderr = finish(start(nodes, out, target))
    assert (code, result["nodes"][0]["sent_bytes"]) == (0, 0), stderr


def test_a_disk_without_room_is_refused_before_anything_is_sent(nodes: TwoNodes, out: Path) -> None:
    small = nodes.disk / "small"
    script = f"mkdir {small} && mount -t tmpfs -o size=6m tmpfs {small}"
    run(["nsenter", "-t", str(nodes.inside_pid), "-m", "sh", "-c", script])
    code, result, _ = finish(start(nodes, out, small / "copy"))
    assert code == 3 and "12.0 MB are still to be sent, 6.29 MB are free" in str(result)
    assert nodes.size_of(small / "copy") == 0


def test_a_source_that_changes_under_way(nodes: TwoNodes, out: Path, tmp_path: Path) -> None:
    source = tmp_path / "changing"
    shutil.copytree(out, source)
    target = nodes.disk / "changed"
    nodes.slow("40mbit")
    process = start(nodes, source, target, "--streams", "1")
    for _ in range(300):
        if nodes.size_of(target) > 1_000_000:
            break
        time.sleep(0.05)
    last = source / "model 00005.safetensors"
    last.write_bytes(last.read_bytes()[:-8] + b"changed!")
    code, result, _ = finish(process)
    nodes.slow("10gbit")
    assert code == 1 and result["error"]["where"] == str(last)
    assert "was changed after it was finished" in result["error"]["message"]


def test_a_damaged_file_there_is_sent_again(nodes: TwoNodes, out: Path) -> None:
    target = nodes.disk / "damaged"
    assert finish(start(nodes, out, target))[0] == 0
    name = "model 00002.safetensors"
    nodes.write(target / name, b"x" * 100)
    code, _, stderr = finish(start(nodes, out, target))
    assert code == 0, stderr
    check_arrived(nodes, out, target)


def test_wrong_bytes_that_rsync_takes_for_right_are_found(nodes: TwoNodes, out: Path) -> None:
    """Same size, same time, another content: only the hashes on arrival can tell."""
    target = nodes.disk / "same time"
    assert finish(start(nodes, out, target))[0] == 0
    name = "model 00003.safetensors"
    times = (out / name).stat()
    nodes.write(target / name, b"\0" * times.st_size)
    seen = f"/proc/{nodes.inside_pid}/root{target / name}"
    os.utime(seen, ns=(times.st_atime_ns, times.st_mtime_ns))
    code, result, _ = finish(start(nodes, out, target))
    assert code == 1 and name in result["error"]["message"]


def test_a_cut_link_is_resumed(nodes: TwoNodes, out: Path) -> None:
    target = nodes.disk / "cut"
    nodes.slow("16mbit")  # about six seconds for all
    process = start(nodes, out, target, "--streams", "2")
    for _ in range(300):
        if nodes.size_of(target) > 2_500_000:
            break
        time.sleep(0.1)
    nodes.cut()
    code, result, _ = finish(process)
    assert 2_500_000 < nodes.size_of(target) < 12_000_000
    nodes.mend()
    nodes.slow("10gbit")
    assert code == 3 and "run it again" in result["error"]["hint"]
    code, result, stderr = finish(start(nodes, out, target))
    assert code == 0, stderr
    check_arrived(nodes, out, target)


def test_nothing_is_copied_while_a_model_is_served(nodes: TwoNodes, out: Path) -> None:
    served = subprocess.Popen(["sh", "-c", "sleep 60; :", "vllm", "serve", "model"])
    # The command line of an engine is what counts; this shell bears one.
    engine = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)", "vllm.entrypoints"]
    )
    try:
        code, result, _ = finish(start(nodes, out, nodes.disk / "served"))
    finally:
        for process in (served, engine):
            process.kill()
            process.wait()
    assert code == 3 and "being served" in result["error"]["message"]


def test_a_node_that_is_not_there(out: Path, nodes: TwoNodes) -> None:
    command = [sys.executable, "-m", "hy3", "copy", str(out), "--json"]
    command += ["--nodes", "10.77.3.9", "--ssh", shlex.join((*nodes.ssh, "-o", "ConnectTimeout=1"))]
    source = str(Path(__file__).resolve().parents[2] / "src")
    done = subprocess.run(
        nodes.on_a(command),
        capture_output=True,
        text=True,
        timeout=60,
        env=environment() | {"PYTHONPATH": source},
    )
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["where"] == "10.77.3.9"

"""Network checks on two namespaces with real faults: MTU, loss, a cut cable, and a sound link."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hy3.doctor.fabric import check_mtu, judge_all_reduce, run_all_reduce
from support.two_nodes import (
    ADDRESS_A,
    ADDRESS_B,
    TwoNodes,
    environment,
    missing_tools,
    run,
    two_nodes,
)

needs_nodes = pytest.mark.skipif(
    bool(missing_tools()) or shutil.which("ping") is None, reason="needs root, namespaces, ping"
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    with two_nodes(tmp_path_factory.mktemp("fabric")) as pair:
        for name, device in ((pair.a, "va"), (pair.b, "vb")):
            run(["ip", "-n", name, "link", "set", device, "mtu", "9000"])
        yield pair


def runner(nodes: TwoNodes):
    def on_a(command: Sequence[str], timeout_s: float) -> tuple[int, str]:
        done = subprocess.run(
            nodes.on_a(command),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment(),
        )
        return done.returncode, done.stdout + done.stderr

    return on_a


@needs_nodes
def test_a_sound_link_is_clean(nodes: TwoNodes) -> None:
    found = check_mtu(runner(nodes), ADDRESS_B, 9000)
    assert (found.verdict, "9000 bytes" in found.evidence) == ("CLEAN", True)


@needs_nodes
def test_a_smaller_mtu_on_one_side_is_found(nodes: TwoNodes) -> None:
    run(["ip", "-n", nodes.b, "link", "set", "vb", "mtu", "1500"])
    try:
        found = check_mtu(runner(nodes), ADDRESS_B, 9000)
    finally:
        run(["ip", "-n", nodes.b, "link", "set", "vb", "mtu", "9000"])
    assert found.verdict == "PROBLEM" and "small packets reach" in found.evidence
    assert found.fix and "MTU 9000" in found.fix.text


@needs_nodes
def test_loss_is_found(nodes: TwoNodes) -> None:
    """A bucket that holds two packets and fills too slowly for the next ones drops them."""
    bucket = ["tbf", "rate", "20kbit", "burst", "20000", "limit", "9500"]
    run(nodes.on_a(["tc", "qdisc", "replace", "dev", "va", "root", *bucket]))
    try:
        found = check_mtu(runner(nodes), ADDRESS_B, 9000)
    finally:
        run(nodes.on_a(["tc", "qdisc", "del", "dev", "va", "root"]))
    assert found.verdict == "PROBLEM" and "% of packets of 9000 bytes" in found.evidence


@needs_nodes
def test_a_cut_cable_is_found(nodes: TwoNodes) -> None:
    nodes.cut()
    try:
        found = check_mtu(runner(nodes), ADDRESS_B, 9000)
    finally:
        nodes.mend()
    assert found.verdict == "PROBLEM" and "does not answer" in found.evidence


def ranks(nodes: TwoNodes) -> tuple[list[str], list[str]]:
    def one(namespace: str, device: str) -> list[str]:
        variables = [f"GLOO_SOCKET_IFNAME={device}", "OMP_NUM_THREADS=1"]
        return ["ip", "netns", "exec", namespace, "env", *variables, sys.executable]

    return one(nodes.a, "va"), one(nodes.b, "vb")


@needs_nodes
@pytest.mark.timeout(200)
def test_two_ranks_move_data(nodes: TwoNodes) -> None:
    leader, follower = ranks(nodes)
    found = run_all_reduce(leader, follower, ADDRESS_A, 29711)
    assert found.verdict == "CLEAN", found
    assert "gloo: 8 kB in" in found.evidence and "64 MB at" in found.evidence


@needs_nodes
@pytest.mark.timeout(200)
def test_a_cut_cable_stops_the_ranks(nodes: TwoNodes) -> None:
    leader, follower = ranks(nodes)
    nodes.cut()
    try:
        found = run_all_reduce(leader, follower, ADDRESS_A, 29712, timeout_s=16)
    finally:
        nodes.mend()
    assert found.verdict == "PROBLEM"


@needs_nodes
@pytest.mark.timeout(200)
def test_the_verb_moves_data_between_two_machines(nodes: TwoNodes, tmp_path: Path) -> None:
    """Node a is this machine as its namespace sees it; node b is reached through real ssh."""
    config = tmp_path / "ssh"
    config.write_text("#!/bin/sh\nexec " + shlex.join(["/usr/bin/ssh", *nodes.ssh[1:]]) + ' "$@"\n')
    config.chmod(0o755)
    command = [sys.executable, "-m", "hy3.cli.app", "doctor", "--json"]
    command += ["--nodes", f"localhost,root@{ADDRESS_B}", "--fabric", f"{ADDRESS_A},{ADDRESS_B}"]
    command += ["--engine-python", sys.executable]
    source = str(Path(__file__).resolve().parents[2] / "src")
    path = f"{tmp_path}:{environment()['PATH']}"
    done = subprocess.run(
        nodes.on_a(command),
        capture_output=True,
        text=True,
        timeout=180,
        env=environment() | {"PYTHONPATH": source, "PATH": path, "GLOO_SOCKET_IFNAME": "va"},
    )
    answers = {each["id"]: each for each in json.loads(done.stdout)["checks"]}
    assert answers["mtu-there"]["verdict"] == "CLEAN"
    assert answers["mtu-back"]["verdict"] == "CLEAN"
    assert answers["all-reduce"]["verdict"] == "CLEAN", answers["all-reduce"]


def said(backend: str = "nccl", small_us: float = 45.0, gb_s: float = 22.0, right: bool = True):
    large = 64 << 20
    return {
        "backend": backend,
        "results": [
            {"bytes": 8 << 10, "median_us": small_us, "right": right},
            {"bytes": large, "median_us": large / (gb_s * 1e9) * 1e6, "right": True},
        ],
    }


@pytest.mark.parametrize(
    ("answer", "verdict", "words"),
    [
        (said(), "CLEAN", "sums are right"),
        (said(right=False), "PROBLEM", "sums are wrong"),
        (said(small_us=209.0), "PROBLEM", "slower than RDMA"),
        (said(gb_s=2.2), "PROBLEM", "slower than RDMA"),
        (said(backend="gloo", small_us=900.0, gb_s=1.0), "CLEAN", "no RDMA was tested"),
    ],
)
def test_what_the_ranks_say_is_judged(answer: dict, verdict: str, words: str) -> None:
    found = judge_all_reduce(json.loads(json.dumps(answer)))
    assert found.verdict == verdict and words in found.evidence
    assert (found.fix is not None) == (verdict == "PROBLEM")


def test_the_script_stands_alone() -> None:
    """The engine's Python has no hy3."""
    text = Path(__file__).resolve().parents[2] / "src/hy3/doctor/all_reduce.py"
    assert "import hy3" not in text.read_text() and "from hy3" not in text.read_text()

"""Network checks on two namespaces with real faults: MTU, loss, a cut cable, and a sound link."""

from __future__ import annotations

import json
import shlex
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
    bool(missing_tools()), reason=f"needs {', '.join(missing_tools())}"
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
    assert "gloo over TCP: 8 kB in" in found.evidence and "64 MB at" in found.evidence


@needs_nodes
@pytest.mark.timeout(200)
def test_a_cut_cable_stops_the_ranks(nodes: TwoNodes) -> None:
    leader, follower = ranks(nodes)
    nodes.cut()
    try:
        found = run_all_reduce(leader, follower, ADDRESS_A, 29712, timeout_s=10)
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
    command = [sys.executable, "-m", "hy3", "doctor", "--json"]
    command += ["--nodes", f"localhost,root@{ADDRESS_B}", "--fabric", f"{ADDRESS_A},{ADDRESS_B}"]
    command += ["--engine-python", sys.executable]
    source = str(Path(__file__).resolve().parents[2] / "src")
    path = f"{tmp_path}:{environment()['PATH']}"
    done = subprocess.run(
        nodes.on_a(command),
        capture_output=True,
        text=True,
        timeout=180,
        env=environment() | {"PYTHONPATH": source, "PATH": path},
    )
    answers = {each["id"]: each for each in json.loads(done.stdout)["checks"]}
    assert answers["mtu-there"]["verdict"] == "CLEAN"
    assert answers["mtu-back"]["verdict"] == "CLEAN"
    assert answers["all-reduce"]["verdict"] == "CLEAN", answers["all-reduce"]


@needs_nodes
@pytest.mark.timeout(200)
@pytest.mark.long
def test_a_slow_link_is_found(nodes: TwoNodes) -> None:
    """The sums are right, and a small part of the rate arrives."""
    leader, follower = ranks(nodes)
    nodes.slow("400mbit")
    try:
        found = run_all_reduce(leader, follower, ADDRESS_A, 29713)
    finally:
        run(nodes.on_a(["tc", "qdisc", "del", "dev", "va", "root"]))
    assert found.verdict == "PROBLEM" and "worse than" in found.evidence


ADAPTERS = ("rocep1s0f1", "roceP2p1s0f1")


def log_of(network: str, adapters: Sequence[str] = ()) -> str:
    """What NCCL 2.27 writes, as far as it is read."""
    start = "spark:71:71 [0] NCCL INFO "
    listed = " ".join(f"[{i}]{name}:1/RoCE" for i, name in enumerate(adapters))
    lines = ["NET/Plugin: Could not find: libnccl-net.so.", f"Using network {network}"]
    if adapters:
        lines.insert(1, f"NET/IB : Using {listed} [RO]; OOB enp1s0f1np1:192.168.100.10<0>")
    return "\n".join(start + line for line in lines)


BOTH, ONE, SOCKET = log_of("IB", ADAPTERS), log_of("IB", ADAPTERS[:1]), log_of("Socket")


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
    ("answer", "log", "rdma", "verdict", "words"),
    [
        (said(), BOTH, 2, "CLEAN", "RDMA over two adapters"),
        (said(right=False), BOTH, 2, "PROBLEM", "sums are wrong"),
        (said(small_us=209.0), BOTH, 2, "PROBLEM", "worse than 120 us"),
        (said(gb_s=11.6), BOTH, 2, "PROBLEM", "worse than 120 us and 14 GB/s"),
        (said(gb_s=11.6), ONE, 1, "CLEAN", "RDMA over one adapter"),
        (said(gb_s=11.6), ONE, 2, "PROBLEM", "NCCL found rocep1s0f1 of 2 adapters"),
        (said(gb_s=5.0), ONE, 1, "PROBLEM", "worse than 120 us and 7 GB/s"),
        (said(small_us=209.0, gb_s=2.2), SOCKET, 2, "PROBLEM", "though both nodes have RDMA"),
        (said(small_us=209.0, gb_s=2.2), SOCKET, 0, "CLEAN", "TCP sockets"),
        (said(small_us=900.0, gb_s=2.2), SOCKET, 0, "PROBLEM", "worse than 600 us"),
        (said(), "", 2, "INCONCLUSIVE", "what it should give is not known"),
        (said("gloo", 900.0, 1.0), "", 0, "CLEAN", "no RDMA was tested"),
        (said("gloo", 900.0, 0.05), "", 0, "PROBLEM", "worse than 5000 us and 0.1 GB/s"),
    ],
)
def test_what_the_ranks_say_is_judged(
    answer: dict, log: str, rdma: int, verdict: str, words: str
) -> None:
    found = judge_all_reduce(json.loads(json.dumps(answer)), log, rdma)
    assert found.verdict == verdict and words in found.evidence, found.evidence
    assert (found.fix is not None) == (verdict == "PROBLEM")


@pytest.mark.parametrize("name", ["all_reduce.py", "gpu_load.py", "dry_load.py"])
def test_the_scripts_stand_alone(name: str) -> None:
    """The engine's Python has no hy3."""
    text = (Path(__file__).resolve().parents[2] / "src/hy3/doctor" / name).read_text()
    assert "import hy3" not in text and "from hy3" not in text

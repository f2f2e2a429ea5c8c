"""NCCL's versions and limits: planted faults and a clean machine."""

from __future__ import annotations

import pytest

from hy3.doctor.checks import nccl
from support.planted_host import PlantedHost, mapped

CHECKS = {check.id: check for check in nccl.CHECKS}
PIP = "/usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2"
SYSTEM = "/usr/lib/aarch64-linux-gnu/libnccl.so.2.28.9"


@pytest.fixture
def planted(tmp_path):
    return PlantedHost(tmp_path)


def running(planted: PlantedHost, *paths: str, pip: str = "2.30.4") -> PlantedHost:
    """An engine that has mapped some libraries."""
    planted.engine(maps=mapped(*paths))
    for pid in (100, 101):
        name = f"nvidia_nccl_cu13-{pip}.dist-info"
        folder = planted.root / f"proc/{pid}/root/usr/local/lib/python3.12/dist-packages" / name
        folder.mkdir(parents=True)
    return planted


def verdict(planted: PlantedHost, identity: str, nodes: int = 2) -> str:
    return CHECKS[identity].run(planted.gather(nodes)).verdict


def test_clean_engine(planted):
    running(planted, PIP)
    planted.file("sys/class/infiniband/rocep1s0f1/ports/1/state", "4: ACTIVE\n")
    assert {name: verdict(planted, name) for name in CHECKS} == dict.fromkeys(CHECKS, "CLEAN")


def test_nothing_to_see(planted):
    assert {name: verdict(planted, name) for name in CHECKS} == dict.fromkeys(CHECKS, "NOT CHECKED")


def test_old_nccl(planted):
    running(planted, PIP, pip="2.28.9")
    assert verdict(planted, "nccl-too-old", nodes=1) == "NOT CHECKED"
    finding = CHECKS["nccl-too-old"].run(planted.gather(2))
    assert finding.verdict == "PROBLEM" and "pid 101: 2.28.9" in finding.evidence


def test_nccl_without_a_version(planted):
    running(planted, "/opt/nccl/libnccl.so.2")
    assert verdict(planted, "nccl-too-old") == "INCONCLUSIVE"


def test_two_libraries_mapped_or_installed(planted):
    planted.file(SYSTEM[1:], "")
    assert verdict(planted, "two-nccl-libraries") == "CLEAN"
    pip = planted.root / "usr/local/lib/python3.12/dist-packages"
    (pip / "nvidia_nccl_cu13-2.30.4.dist-info").mkdir(parents=True)
    assert verdict(planted, "two-nccl-libraries") == "INCONCLUSIVE"
    running(planted, PIP, SYSTEM)
    assert verdict(planted, "two-nccl-libraries") == "PROBLEM"


def test_locked_memory(planted):
    planted.file("sys/class/infiniband/rocep1s0f1/ports/1/state", "4: ACTIVE\n")
    limited = "Max locked memory         8388608              8388608              bytes     \n"
    planted.file("proc/self/limits", limited)
    assert verdict(planted, "memlock-limited") == "INCONCLUSIVE"
    planted.engine(limits=limited)
    assert verdict(planted, "memlock-limited") == "PROBLEM"

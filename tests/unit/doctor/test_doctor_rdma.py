"""RDMA as files show it: planted faults and two clean adapters."""

from __future__ import annotations

import shutil

import pytest

from hy3.doctor.checks import rdma
from support.planted_host import GID_10, LINK_LOCAL, PlantedHost

CHECKS = {check.id: check for check in rdma.CHECKS}
SPARK = "NCCL_IB_HCA=rocep1s0f1,roceP2p1s0f1\0NCCL_SOCKET_IFNAME=enp1s0f1np1\0"


@pytest.fixture
def planted(tmp_path):
    host = PlantedHost(tmp_path)
    host.fabric()
    return host


def verdict(planted: PlantedHost, identity: str, nodes: int = 2) -> tuple[str, str]:
    finding = CHECKS[identity].run(planted.gather(nodes))
    return finding.verdict, finding.evidence


def serve(planted: PlantedHost, environ: str) -> PlantedHost:
    planted.engine(environ=environ)
    for pid in (100, 101):
        planted.file(f"proc/{pid}/root/dev/infiniband/uverbs0", "")
    return planted


@pytest.mark.parametrize("identity", CHECKS)
def test_clean(planted, identity):
    serve(planted, SPARK)
    assert verdict(planted, identity)[0] == "CLEAN"


@pytest.mark.parametrize("identity", CHECKS)
def test_no_adapter(tmp_path, identity):
    assert verdict(PlantedHost(tmp_path), identity, nodes=1)[0] == "NOT CHECKED"


def test_devices(planted, tmp_path):
    assert verdict(planted, "rdma-devices-missing")[0] == "INCONCLUSIVE"
    planted.engine()
    (planted.root / "proc/101/root/dev").mkdir(parents=True)
    found, evidence = verdict(planted, "rdma-devices-missing")
    assert found == "PROBLEM" and "sees no /dev/infiniband" in evidence
    shutil.rmtree(planted.root / "dev/infiniband")
    assert "no uverbs" in verdict(planted, "rdma-devices-missing")[1]
    assert verdict(PlantedHost(tmp_path / "other"), "rdma-devices-missing")[0] == "PROBLEM"


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ("NCCL_IB_GID_INDEX=3", None),
        ("NCCL_IB_GID_INDEX=4", "empty on roceP2p1s0f1"),
        ("NCCL_IB_HCA=rocep1s0f1\0NCCL_IB_GID_INDEX=1", "RoCE v2 on rocep1s0f1"),
        ("NCCL_IB_HCA=roceP2p1s0f1\0NCCL_IB_GID_INDEX=2", "IB/RoCE v1 on roceP2p1s0f1"),
        ("NCCL_IB_ADDR_RANGE=192.168.100.0/24", None),
        ("NCCL_IB_ADDR_RANGE=10.0.0.0/8", "no address of this machine"),
        ("NCCL_IB_ADDR_RANGE=", "no address of this machine"),
    ],
)
def test_what_engines_are_told_of_gids(planted, environ, word):
    serve(planted, environ)
    found, evidence = verdict(planted, "gid-unusable")
    assert found == ("CLEAN" if word is None else "PROBLEM")
    assert word is None or word in evidence


def test_a_table_without_an_ipv4_entry(tmp_path):
    planted = PlantedHost(tmp_path)
    planted.hca("rocep1s0f1", "enp1s0f1np1", i1=(LINK_LOCAL, "RoCE v2"), i2=(GID_10, "IB/RoCE v1"))
    assert verdict(planted, "gid-unusable")[0] == "PROBLEM"


@pytest.mark.parametrize(
    "environ",
    [
        "NCCL_IB_HCA=rocep1s0f0",
        "NCCL_IB_HCA==rocep1s0",
        "NCCL_SOCKET_IFNAME=enp1s0f0np0",
        "GLOO_SOCKET_IFNAME=eth7",
    ],
)
def test_the_wrong_port(planted, environ):
    assert verdict(planted, "hca-of-another-port")[0] == "NOT CHECKED"
    serve(planted, environ)
    assert verdict(planted, "hca-of-another-port")[0] == "PROBLEM"


def test_one_adapter(planted, tmp_path):
    assert verdict(planted, "one-adapter-of-two")[0] == "INCONCLUSIVE"
    serve(planted, "NCCL_IB_HCA=rocep1s0f1")
    assert verdict(planted, "one-adapter-of-two")[0] == "PROBLEM"
    other = PlantedHost(tmp_path / "other")
    other.hca("rocep1s0f1", "enp1s0f1np1", i3=(GID_10, "RoCE v2"))
    other.hca("roceP2p1s0f1", "enP2p1s0f1np1", i1=(LINK_LOCAL, "RoCE v2"))
    assert verdict(other, "one-adapter-of-two")[0] == "PROBLEM"


def test_another_users_engine_leaves_it_open(planted):
    host = planted.gather(2)
    records = host.records | {"environment 9": type(host.records["hca"])("denied", "")}
    host = type(host)(host.name, records, 2)
    for identity in ("gid-unusable", "hca-of-another-port", "one-adapter-of-two"):
        assert CHECKS[identity].run(host).verdict == "INCONCLUSIVE"


def test_addresses_that_a_reboot_takes(planted):
    plan = planted.root / "etc/netplan/40-fabric.yaml"
    plan.write_text("enp1s0f1np1: {}\n")
    found, evidence = verdict(planted, "addresses-not-kept")
    assert found == "PROBLEM" and evidence.startswith("enP2p1s0f1np1 have")
    planted.file("etc/NetworkManager/system-connections/b.nmconnection", "id=enP2p1s0f1np1\n")
    assert verdict(planted, "addresses-not-kept")[0] == "CLEAN"
    planted.file("etc/dgx-release", "DGX_NAME=spark\n")
    assert verdict(planted, "addresses-not-kept")[0] == "PROBLEM"
    plan.write_text("fabric: {match: {macaddress: 4c:bb:47:00:00:01}}\n")
    assert verdict(planted, "addresses-not-kept")[0] == "INCONCLUSIVE"
    planted.addresses(eth0="10.0.0.2")
    assert verdict(planted, "addresses-not-kept")[0] == "NOT CHECKED"


def test_pcie_errors(planted):
    path = "sys/class/infiniband/rocep1s0f1/device/aer_dev_nonfatal"
    planted.file(path, "DLP 3\nTOTAL_ERR_NONFATAL 3\n")
    assert verdict(planted, "pcie-errors") == (
        "PROBLEM",
        "rocep1s0f1: 3 uncorrected PCI Express errors",
    )

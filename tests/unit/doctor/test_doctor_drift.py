"""A fabric that changes while it is watched, and one that does not."""

from __future__ import annotations

import shutil

import pytest

from hy3.doctor.checks.drift import CHECKS, Watched, watch
from hy3.doctor.host import Host, gather_network
from hy3.errors import EnvironmentFault
from support.planted_host import GID_10, PlantedHost

(DRIFTS,) = CHECKS
PORT = "sys/class/infiniband/rocep1s0f1/ports/1"


@pytest.fixture
def planted(tmp_path):
    host = PlantedHost(tmp_path)
    host.fabric()
    return host


def watched(planted: PlantedHost, *events) -> Watched:
    """A reading after each event, none of them waited for."""
    left, waits = list(events), []

    def read(_: Host) -> Host:
        left.pop(0)()
        return planted.gather()

    found = watch(planted.gather(), len(events), read, waits.append)
    assert waits == [1.0] * len(events)
    return found


def nothing() -> None:
    pass


def test_the_same_all_the_time(planted):
    found = DRIFTS.run(watched(planted, nothing, nothing, nothing))
    assert (found.verdict, found.evidence) == ("CLEAN", "4 readings in 3 s are the same")


def test_a_gid_that_moves_to_another_index(planted):
    def move() -> None:
        (planted.root / PORT / "gids/3").rename(planted.root / PORT / "gids/4")
        kinds = planted.root / PORT / "gid_attrs/types"
        (kinds / "3").rename(kinds / "4")

    found = DRIFTS.run(watched(planted, nothing, move, nothing))
    assert found.verdict == "PROBLEM"
    assert "reading 3: rocep1s0f1 GID 3 was 192.168.100.10, RoCE v2, is absent" in found.evidence
    assert "rocep1s0f1 GID 4 was absent, is 192.168.100.10" in found.evidence


def test_a_link_that_goes_and_comes_back(planted):
    found = DRIFTS.run(
        watched(
            planted,
            lambda: planted.file(f"{PORT}/state", "1: DOWN\n"),
            lambda: planted.file(f"{PORT}/state", "4: ACTIVE\n"),
        )
    )
    assert "reading 2: rocep1s0f1 port 1 was up, is down" in found.evidence
    assert "reading 3: rocep1s0f1 port 1 was down, is up" in found.evidence


def test_an_address_that_goes(planted):
    found = DRIFTS.run(watched(planted, lambda: planted.addresses(enp1s0f1np1="192.168.100.10")))
    assert "the address of enP2p1s0f1np1 was 192.168.101.10, is absent" in found.evidence


def test_many_changes_are_counted(planted):
    found = DRIFTS.run(watched(planted, lambda: shutil.rmtree(planted.root / "sys")))
    assert found.verdict == "PROBLEM" and "changes more" in found.evidence


def test_a_node_that_is_lost_meanwhile(planted):
    def read(_: Host) -> Host:
        raise EnvironmentFault("does not answer within 120 s", "wait", "spark2")

    found = DRIFTS.run(watch(planted.gather(), 60, read, lambda _: None))
    assert (found.verdict, found.evidence) == (
        "INCONCLUSIVE",
        "a reading failed: spark2: does not answer within 120 s",
    )


def test_not_asked_for_or_nothing_to_watch(planted, tmp_path):
    assert DRIFTS.run(watch(planted.gather(), 0)).evidence.startswith("read once: --watch")
    bare = PlantedHost(tmp_path / "bare")
    assert DRIFTS.run(watch(bare.gather(), 0)).evidence == "no RDMA device here"


def test_a_long_watch_reads_twenty_times(planted):
    waits: list[float] = []
    host = planted.gather()
    found = watch(host, 600, lambda _: host, waits.append)
    assert (len(found.hosts), set(waits)) == (21, {30.0})


def test_only_the_network_is_read_again():
    records = gather_network(Host("here", {})).records
    assert "addresses" in records and "/proc/meminfo" not in records


def test_the_planted_gid_is_the_one_that_is_named(planted):
    assert (planted.root / PORT / "gids/3").read_text().strip() == GID_10

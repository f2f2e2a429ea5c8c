"""Two nodes that are alike, and one difference planted at a time."""

from __future__ import annotations

import pytest

from hy3.doctor.checks.nodes import FACTS, NODE_CHECKS, fact_table
from support.planted_host import GB10, UNLIMITED, PlantedHost, mapped

CHECKS = {check.id: check for check in NODE_CHECKS}
PACKAGES = "proc/100/root/usr/local/lib/python3.12/dist-packages"
PIP = "/usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2"
FILES = "Max open files            1048576              1048576              files     \n"
LOCKED = UNLIMITED.replace("unlimited", "8388608")
DOCKER = """case "$1" in
images) echo 'vllm/vllm-openai:v0.26.0 sha256:aa' ;;
ps) echo 0123 ;;
inspect) printf '/a\\tvllm/vllm-openai:v0.26.0\\tsha256:aa\\tvllm serve\\n' ;;
esac"""


def node(root) -> PlantedHost:
    host = PlantedHost(root)
    host.fabric()
    host.engine(maps=mapped(PIP))
    for pid in ("100", "101"):
        folder = host.root / PACKAGES.replace("100", pid)
        (folder / "nvidia_nccl_cu13-2.30.4.dist-info").mkdir(parents=True)
    (host.root / PACKAGES / "vllm-0.26.0.dist-info").mkdir()
    host.file("proc/self/limits", UNLIMITED + FILES)
    host.program("docker", DOCKER)
    return host


@pytest.fixture
def pair(tmp_path):
    return node(tmp_path / "a"), node(tmp_path / "b")


def verdicts(pair) -> dict[str, str]:
    hosts = named(pair)
    return {identity: check.run(hosts).verdict for identity, check in CHECKS.items()}


def named(pair):
    hosts = [each.gather(2) for each in pair]
    return [type(h)(name, h.records, 2, name) for name, h in zip("ab", hosts, strict=True)]


def test_alike(pair):
    assert verdicts(pair) == dict.fromkeys(CHECKS, "CLEAN")
    table = fact_table(named(pair))
    assert all(len(set(row.values())) == 1 for row in table.values())
    assert table["kernel"] == {"a": "6.14.0-1013-nvidia", "b": "6.14.0-1013-nvidia"}
    assert table["nccl"] == {"a": "2.30.4", "b": "2.30.4"}


PLANTS = {
    "kernel": lambda b: b.file("proc/sys/kernel/osrelease", "6.17.0-1031-nvidia\n"),
    "driver": lambda b: b.program("nvidia-smi", f"echo '{GB10.replace('580.95', '610.43')}'"),
    "devices": lambda b: b.program("nvidia-smi", f"echo '{GB10}'; echo '{GB10}'"),
    "nccl": lambda b: b.engine(maps=mapped("/usr/lib/libnccl.so.2.28.9")),
    "engine": lambda b: (b.root / PACKAGES / "vllm-0.26.0.dist-info").rename(
        b.root / PACKAGES / "vllm-0.33.0.dist-info"
    ),
    "running-images": lambda b: b.program("docker", DOCKER.replace("tsha256:aa", "tsha256:bb")),
    "images": lambda b: b.program("docker", DOCKER.replace(" sha256:aa", " sha256:bb")),
    "earlyoom": lambda b: b.process(50, "earlyoom", "/usr/bin/earlyoom -m 2"),
    "swap": lambda b: b.file("proc/sys/vm/swappiness", "1\n"),
    "memlock": lambda b: b.file("proc/self/limits", LOCKED + FILES),
    "nofile": lambda b: b.file("proc/self/limits", UNLIMITED + FILES.replace("1048576", "1024")),
    "remove-ipc": lambda b: (b.root / "run/systemd/system").mkdir(parents=True),
    "fabric-mtu": lambda b: b.file("sys/class/net/enp1s0f1np1/mtu", "1500\n"),
    "free-memory": lambda b: b.memory(MemFree=100_000_000, MemAvailable=102_000_000),
}


@pytest.mark.parametrize("fact", PLANTS)
def test_one_difference(pair, fact):
    PLANTS[fact](pair[1])
    found = verdicts(pair)
    assert found[f"nodes-differ-in-{fact}"] == "PROBLEM"
    others = {name for name, verdict in found.items() if verdict != "CLEAN"}
    allowed = {"nccl": {"nodes-differ-in-engine"}}.get(fact, set())
    assert others - allowed == {f"nodes-differ-in-{fact}"}


def test_every_fact_has_its_planted_difference():
    assert {fact.name for fact in FACTS} | {"free-memory", "images"} == PLANTS.keys()


def test_what_one_node_does_not_tell_is_no_agreement(pair):
    (pair[1].root / "proc/sys/kernel/osrelease").unlink()
    (pair[1].root / "usr/bin/docker").unlink()
    found = verdicts(pair)
    assert found["nodes-differ-in-kernel"] == "INCONCLUSIVE"
    assert found["nodes-differ-in-images"] == "NOT CHECKED"
    assert fact_table(named(pair))["kernel"]["b"] == "unknown"

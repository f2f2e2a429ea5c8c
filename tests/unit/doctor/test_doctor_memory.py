"""Faults of memory, planted in a folder that stands for a machine, and a clean machine."""

from __future__ import annotations

import pytest

from hy3.doctor.checks import memory
from support.planted_host import H200, PlantedHost

CHECKS = {check.id: check for check in memory.CHECKS}
EARLYOOM = """# EARLYOOM_ARGS="-m 5"
EARLYOOM_ARGS="-m 2 -s 80 --prefer '(^|/)(vllm|ray|python3?)' --avoid sshd"
"""


@pytest.fixture
def planted(tmp_path):
    return PlantedHost(tmp_path)


def verdict(planted: PlantedHost, identity: str) -> tuple[str, str]:
    finding = CHECKS[identity].run(planted.gather())
    return finding.verdict, finding.evidence


@pytest.mark.parametrize("identity", CHECKS)
def test_clean_machine(planted, identity):
    assert verdict(planted, identity)[0] == "CLEAN"


@pytest.mark.parametrize("identity", ["cache-counts-as-used", "less-free-than-usual"])
def test_without_meminfo_nothing_is_clean(planted, identity):
    (planted.root / "proc/meminfo").unlink()
    assert verdict(planted, identity)[0] == "NOT CHECKED"


def test_a_driver_that_fails_leaves_it_open(planted):
    planted.program("nvidia-smi", "echo 'Failed to initialize NVML'; exit 18")
    assert verdict(planted, "swap-under-engine") == (
        "INCONCLUSIVE",
        "asking for gpus fails: Failed to initialize NVML",
    )


def test_cards_have_memory_of_their_own(planted):
    planted.program("nvidia-smi", f"echo '{H200}'")
    planted.memory(MemFree=1_000_000, SwapTotal=8_000_000)
    for identity in ("cache-counts-as-used", "less-free-than-usual", "swap-under-engine"):
        assert verdict(planted, identity)[0] == "NOT CHECKED"


def test_earlyoom(planted):
    planted.file("etc/default/earlyoom", EARLYOOM)
    assert verdict(planted, "earlyoom-prefers-engine")[0] == "CLEAN"  # it is not running
    planted.process(50, "earlyoom", "/usr/bin/earlyoom -m 2")
    found, evidence = verdict(planted, "earlyoom-prefers-engine")
    assert found == "PROBLEM" and "vllm, ray::RayWorkerProc" in evidence
    planted.process(50, "earlyoom", "/usr/bin/earlyoom --prefer ^(Web|chrom) -m 2")
    assert verdict(planted, "earlyoom-prefers-engine")[0] == "CLEAN"
    planted.process(50, "earlyoom", "/usr/bin/earlyoom --prefer (ray|VLLM)")
    assert verdict(planted, "earlyoom-prefers-engine")[0] == "PROBLEM"
    planted.process(50, "earlyoom", "/usr/bin/earlyoom --prefer ((")
    assert verdict(planted, "earlyoom-prefers-engine")[0] == "INCONCLUSIVE"


def test_page_cache_and_the_engine_that_knows_better(planted):
    planted.memory(MemFree=3_000_000)
    assert verdict(planted, "cache-counts-as-used")[0] == "PROBLEM"
    packages = planted.root / "usr/local/lib/python3.12/dist-packages"
    (packages / "vllm-0.33.0.dist-info").mkdir(parents=True)
    assert verdict(planted, "cache-counts-as-used")[0] == "CLEAN"
    (packages / "vllm-0.33.0.dist-info").rename(packages / "vllm-0.20.0.dist-info")
    assert verdict(planted, "cache-counts-as-used")[0] == "PROBLEM"


def test_less_free_memory(planted):
    planted.memory(MemFree=106_000_000, MemAvailable=107_000_000)
    assert verdict(planted, "less-free-than-usual")[0] == "PROBLEM"
    planted.engine()
    assert verdict(planted, "less-free-than-usual")[0] == "INCONCLUSIVE"


def test_engine_left_behind(planted):
    planted.engine()
    assert verdict(planted, "engine-left-behind")[0] == "INCONCLUSIVE"
    for name in ("status", "cmdline"):
        (planted.root / "proc/100" / name).unlink()
    found, evidence = verdict(planted, "engine-left-behind")
    assert found == "PROBLEM" and "pid 101" in evidence
    fix = CHECKS["engine-left-behind"].run(planted.gather()).fix
    assert fix.shown() == ["kill 101"]


def test_a_loop_of_parents_ends(planted):
    planted.process(7, "ray::RayWorkerProc", "ray::RayWorkerProc", parent=8)
    planted.process(8, "sh", "sh", parent=7)
    assert verdict(planted, "engine-left-behind")[0] == "PROBLEM"


def test_swap(planted):
    planted.memory(SwapTotal=16_000_000, SwapFree=16_000_000)
    assert verdict(planted, "swap-under-engine")[0] == "PROBLEM"
    planted.file("proc/sys/vm/swappiness", "1\n")
    found, evidence = verdict(planted, "swap-under-engine")
    assert found == "PROBLEM" and "after a reboot" in evidence
    planted.file("etc/sysctl.d/99-swap.conf", "# quiet\nvm.swappiness = 1\n")
    assert verdict(planted, "swap-under-engine")[0] == "CLEAN"
    planted.process(101, "VLLM::EngineCore", "VLLM::EngineCore", swap_kb=4_000)
    assert verdict(planted, "swap-under-engine")[0] == "PROBLEM"


@pytest.mark.parametrize(
    "command", ["/usr/lib/sftp-server -f DAEMON", "scp -t /m", "hf download a/b"]
)
def test_every_way_of_copying(planted, command):
    planted.process(60, "copies", command)
    assert verdict(planted, "copy-while-serving")[0] == "INCONCLUSIVE"


def test_our_own_server_is_an_engine(planted):
    planted.process(60, "rsync", "rsync -a /models b:/models")
    planted.process(100, "hy3", "/usr/bin/python3 /usr/local/bin/hy3 serve /models/hy3")
    assert verdict(planted, "copy-while-serving")[0] == "PROBLEM"
    assert verdict(planted, "engine-left-behind")[0] == "INCONCLUSIVE"


def test_copies(planted):
    planted.process(60, "rsync", "rsync -a /models b:/models")
    assert verdict(planted, "copy-while-serving")[0] == "INCONCLUSIVE"
    planted.engine()
    assert verdict(planted, "copy-while-serving") == (
        "PROBLEM",
        "rsync -a (pid 60) is running beside an engine",
    )

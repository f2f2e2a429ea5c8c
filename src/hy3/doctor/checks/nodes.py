"""Facts that nodes which work together should share; where they differ is a finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hy3.doctor.check import CannotTell, Check, Finding, Severity, clean, inconclusive, problem
from hy3.doctor.checks.nccl import limit_of
from hy3.doctor.checks.session import ipc_removed_at_logout
from hy3.doctor.host import Host
from hy3.doctor.ports import interfaces_of, ports
from hy3.doctor.software import gpus, nccl_versions, package_versions
from hy3.hardware.device import GIB

Hosts = Sequence[Host]
_MEMORY_MARGIN_BYTES = 4 * GIB
_EUGR = "https://github.com/eugr/spark-vllm-docker"


@dataclass(frozen=True)
class Fact:
    """``value`` is text to compare and to show; None where it is not known."""

    name: str
    severity: Severity
    value: Callable[[Host], str | None]
    source: str = _EUGR


def _kernel(host: Host) -> str | None:
    text = host.get("/proc/sys/kernel/osrelease")
    return text.strip() if text else None


def _driver(host: Host) -> str | None:
    return ", ".join(sorted({gpu.driver for gpu in gpus(host)})) or None


def _devices(host: Host) -> str | None:
    return ", ".join(gpu.name for gpu in gpus(host)) or None


def _nccl(host: Host) -> str | None:
    return ", ".join(sorted({v for each in nccl_versions(host).values() for v in each})) or None


def _engine(host: Host) -> str | None:
    found = {
        f"{package} {version}"
        for package in ("vllm", "sglang", "torch", "ray")
        for version in package_versions(host, package).values()
    }
    return ", ".join(sorted(found)) or None


def _earlyoom(host: Host) -> str:
    running = [each for each in host.processes.values() if each.name == "earlyoom"]
    return running[0].command.strip() if running else "not running"


def _swap(host: Host) -> str:
    swappiness = (host.get("/proc/sys/vm/swappiness") or "?").strip()
    return f"{host.meminfo['SwapTotal'] / GIB:.0f} GiB, swappiness {swappiness}"


def _memlock(host: Host) -> str | None:
    return limit_of(host.need("/proc/self/limits"), "Max locked memory")


def _nofile(host: Host) -> str | None:
    return limit_of(host.need("/proc/self/limits"), "Max open files")


def _remove_ipc(host: Host) -> str:
    return ipc_removed_at_logout(host).evidence


def _mtu(host: Host) -> str | None:
    fabric = {name for port in ports(host) for name in interfaces_of(host, port.hca)}
    mtus = {
        line.rpartition(":")[2]
        for line in host.lines("net")
        if line.partition("/mtu:")[0].rpartition("/")[2] in fabric and "/mtu:" in line
    }
    return ", ".join(sorted(mtus)) or None


def _running_images(host: Host) -> str | None:
    return ", ".join(sorted(line.split("\t")[2] for line in host.lines("containers"))) or None


FACTS = (
    Fact("kernel", "stops", _kernel),
    Fact("driver", "stops", _driver),
    Fact("devices", "stops", _devices),
    Fact("nccl", "stops", _nccl, "https://github.com/vllm-project/vllm/issues/52504"),
    Fact("engine", "stops", _engine),
    Fact("running-images", "stops", _running_images),
    Fact("earlyoom", "stops", _earlyoom, "https://github.com/MiaAI-Lab/Hy3-Dual-DGX-Spark"),
    Fact("swap", "stops", _swap),
    Fact("memlock", "stops", _memlock),
    Fact("nofile", "stops", _nofile),
    Fact("remove-ipc", "stops", _remove_ipc, f"{_EUGR}/issues/352"),
    Fact("fabric-mtu", "stops", _mtu),
)


def fact_table(hosts: Hosts) -> dict[str, dict[str, str]]:
    """Fact -> host -> its value, ``unknown`` where it could not be read."""
    table = {
        fact.name: {host.name: _value(fact, host) or "unknown" for host in hosts} for fact in FACTS
    }
    table["free-memory"] = {host.name: _free_text(host) for host in hosts}
    return table


def _value(fact: Fact, host: Host) -> str | None:
    try:
        return fact.value(host)
    except CannotTell:
        return None


def _free_text(host: Host) -> str:
    try:
        return f"{host.meminfo['MemAvailable'] / GIB:.1f} GiB"
    except CannotTell:
        return "unknown"


def _same(fact: Fact) -> Callable[[Hosts], Finding]:
    def examine(hosts: Hosts) -> Finding:
        values = {host.name: _value(fact, host) for host in hosts}
        known = {value for value in values.values() if value is not None}
        evidence = "; ".join(f"{name}: {value or 'unknown'}" for name, value in values.items())
        if not known:
            raise CannotTell("NOT CHECKED", f"no node tells its {fact.name}")
        if len(known) > 1:
            return problem(evidence, f"make {fact.name} the same on every node")
        if None in values.values():
            return inconclusive(evidence)
        return clean(f"the same on all: {next(iter(known))}")

    return examine


def _free_memory(hosts: Hosts) -> Finding:
    free = {host.name: host.meminfo["MemAvailable"] for host in hosts}
    evidence = "; ".join(f"{name}: {value / GIB:.1f} GiB" for name, value in free.items())
    if max(free.values()) - min(free.values()) > _MEMORY_MARGIN_BYTES:
        return problem(evidence, "plan with the least: every rank gets the same share")
    return clean(evidence)


def _images(hosts: Hosts) -> Finding:
    """Tags that every node has, and the images behind them."""
    tags = [dict(line.split()[:2] for line in host.lines("images")) for host in hosts]
    if any(host.get("images") is None for host in hosts):
        raise CannotTell("NOT CHECKED", "a node has no docker")
    common = set.intersection(*(set(each) for each in tags))
    differing = [tag for tag in sorted(common) if len({each[tag] for each in tags}) > 1]
    if differing:
        ids = "; ".join(
            f"{host.name}: {each[differing[0]][:19]}"
            for host, each in zip(hosts, tags, strict=True)
        )
        return problem(
            f"{differing[0]} is not one image: {ids}",
            "name images by digest, or send one node's to the others (docker save, docker load)",
        )
    if not common:
        return inconclusive("the nodes have no image in common")
    return clean(f"{len(common)} common tags stand for the same images")


NODE_CHECKS: tuple[Check[Hosts], ...] = (
    *(
        Check(
            f"nodes-differ-in-{fact.name}",
            fact.severity,
            f"nodes differ in {fact.name}",
            fact.source,
            _same(fact),
        )
        for fact in FACTS
    ),
    Check(
        "nodes-differ-in-free-memory",
        "stops",
        "one node has less free memory",
        "https://github.com/tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark",
        _free_memory,
    ),
    Check(
        "nodes-differ-in-images",
        "stops",
        "one tag stands for different images",
        _EUGR,
        _images,
    ),
)

"""Which NCCL an engine uses, what its environment tells it, and the limits that it runs under."""

from __future__ import annotations

from hy3.doctor.check import Check, Finding, clean, inconclusive, not_checked, problem
from hy3.doctor.engine_matrix import nccl_floor, version_key
from hy3.doctor.host import Host
from hy3.doctor.process import engines
from hy3.doctor.software import nccl_versions

_UNLIMITED = "unlimited"


def nccl_too_old(host: Host) -> Finding:
    """Versions below the first that replays graphs across nodes."""
    if host.nodes == 1:
        return not_checked("one machine: no collective crosses a network")
    floor = nccl_floor()
    found = nccl_versions(host)
    if not found:
        return not_checked("no NCCL is found: not running, or within a container's image")
    evidence = "; ".join(f"{where}: {', '.join(sorted(each))}" for where, each in found.items())
    versions = {version for each in found.values() for version in each}
    if any(version_key(each) and version_key(each) < version_key(floor) for each in versions):
        return problem(
            f"{evidence}; below {floor}",
            f"put NCCL {floor} or newer into every node's image, or run eager",
        )
    if not all(version_key(each) for each in versions):
        return inconclusive(f"{evidence}: its version is not written in its name")
    return clean(evidence)


def two_nccl_libraries(host: Host) -> Finding:
    """More than one libnccl, mapped by one process or installed side by side."""
    mapped = [name for name in host.matching(r"libraries \d+") if len(host.lines(name)) > 1]
    if mapped:
        paths = ", ".join(host.lines(mapped[0]))
        return problem(
            f"pid {mapped[0].split()[1]} has mapped {paths}",
            "leave one: remove the system's libnccl from the image, or point LD_PRELOAD at pip's",
        )
    if any(host.lines(name) for name in host.matching(r"libraries \d+")):
        return clean("every running engine has mapped one libnccl")
    installed = nccl_versions(host).get("this machine", set())
    if not installed:
        return not_checked("no engine is running, and no NCCL is installed outside containers")
    if len(installed) > 1:
        return inconclusive(f"installed are {', '.join(sorted(installed))}; no engine is running")
    return clean(f"one is installed: {', '.join(installed)}")


def memlock_limited(host: Host) -> Finding:
    """RDMA pins memory; a limit makes it fail in the middle of a load."""
    if not host.lines("hca"):
        return not_checked("no RDMA device here")
    running = host.matching(r"/proc/\d+/limits")
    limited = []
    for name in running or ["/proc/self/limits"]:
        value = limit_of(host.need(name), "Max locked memory")
        if value != _UNLIMITED:
            limited.append(f"{name}: {value} bytes")
    if not running and engines(host.processes):
        return inconclusive("the limits of the running engine may not be read by this user")
    if not limited:
        return clean("locked memory is unlimited")
    fix = "start containers with --ulimit memlock=-1, services with LimitMEMLOCK=infinity"
    if running:
        return problem(limited[0], fix)
    return inconclusive(f"{limited[0]}; no engine is running, a container has its own", fix)


def limit_of(text: str, name: str) -> str | None:
    """The soft limit in a ``limits`` file of /proc."""
    for line in text.splitlines():
        if line.startswith(name):
            return line.removeprefix(name).split()[0]
    return None


CHECKS = (
    Check(
        "nccl-too-old",
        "stops",
        "graphs with collectives across nodes deadlock",
        "https://github.com/vllm-project/vllm/issues/52504",
        nccl_too_old,
    ),
    Check(
        "two-nccl-libraries",
        "stops",
        "pip's NCCL and the system's are both loaded",
        "https://github.com/vllm-project/vllm/issues/42354",
        two_nccl_libraries,
    ),
    Check(
        "memlock-limited",
        "stops",
        "RDMA cannot pin its memory",
        "https://github.com/eugr/spark-vllm-docker",
        memlock_limited,
    ),
)

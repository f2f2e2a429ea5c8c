"""RDMA as files show it: devices, GID tables, what an engine was told of them, addresses kept."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hy3.doctor.check import (
    CannotTell,
    Check,
    Finding,
    clean,
    inconclusive,
    not_checked,
    problem,
)
from hy3.doctor.host import Host
from hy3.doctor.ports import (
    Port,
    addresses,
    engine_environments,
    in_range,
    interfaces_of,
    ports,
)

_CONFIGURED = (
    r"/etc/netplan/.*|/etc/systemd/network/.*|/etc/network/interfaces(\.d/.*)?"
    r"|/etc/NetworkManager/system-connections/.*"
)


def _need_ports(host: Host) -> list[Port]:
    found = ports(host)
    if not found:
        raise CannotTell("NOT CHECKED", "no RDMA device here")
    return found


def rdma_devices_missing(host: Host) -> Finding:
    """/dev/infiniband, here and in the container of a running engine."""
    if not host.lines("hca"):
        if host.nodes == 1:
            return not_checked("one machine, and no RDMA device")
        return problem(
            "no RDMA device: NCCL between the nodes falls back to TCP sockets",
            "load the driver of the adapter (mlx5_ib), or expect a fifth of the speed",
        )
    if not any("uverbs" in path for path in host.lines("rdma")):
        return problem("/dev/infiniband has no uverbs", "load ib_uverbs", _modprobe("ib_uverbs"))
    inside = host.matching(r"rdma \d+")
    without = [n for n in inside if not any("uverbs" in path for path in host.lines(n))]
    if without:
        return problem(
            f"pid {without[0].split()[1]} sees no /dev/infiniband: it talks through TCP sockets",
            "start the container with --device /dev/infiniband, and NCCL_NET=IB to fail loudly",
        )
    if inside:
        return clean("the running engine sees /dev/infiniband")
    return inconclusive("it is there; what a container is given shows when it runs")


def _modprobe(module: str) -> tuple[str, ...]:
    return ("sudo", "modprobe", module)


def gid_unusable(host: Host) -> Finding:
    """A RoCE v2 entry with an IPv4 address on a port with link, and what engines were told."""
    found = _need_ports(host)
    usable = [port for port in found if port.usable]
    if not usable:
        return problem(
            f"no port of {', '.join(port.hca for port in found)} has link and a RoCE v2 entry "
            "with an IPv4 address",
            "give the cabled port's interface an IPv4 address",
        )
    own = [address for each in addresses(host).values() for address in each]
    for pid, told in engine_environments(host).items():
        for fault in _gid_faults(told, found, own):
            return problem(
                f"pid {pid} was started with {fault}",
                "unset it and set NCCL_IB_ADDR_FAMILY=AF_INET and NCCL_IB_ROCE_VERSION_NUM=2: "
                "the index drifts after link events",
            )
    table = ", ".join(
        f"{port.hca} index {index} {gid.address}"
        for port in usable
        for index, gid in port.gids.items()
        if gid.usable
    )
    return clean(table)


def _gid_faults(told: dict[str, str], found: list[Port], own: list[str]) -> Iterator[str]:
    index = told.get("NCCL_IB_GID_INDEX", "")
    if index.isdigit():
        for port in _named(told, found):
            gid = port.gids.get(int(index))
            if port.active and (gid is None or not gid.usable):
                what = gid.kind if gid else "empty"
                yield f"NCCL_IB_GID_INDEX={index}, which is {what} on {port.hca}"
    if "NCCL_IB_ADDR_RANGE" in told:
        network = told["NCCL_IB_ADDR_RANGE"]
        if not any(in_range(address, network) for address in own):
            yield f"NCCL_IB_ADDR_RANGE={network!r}, where no address of this machine is"


def _named(told: dict[str, str], found: list[Port]) -> list[Port]:
    """The ports that NCCL_IB_HCA selects: prefixes, or whole names after ``=``."""
    value = told.get("NCCL_IB_HCA", "")
    if not value or value.startswith("^"):
        return found
    exact = value.startswith("=")
    names = [part.partition(":")[0] for part in value.lstrip("=").split(",")]
    if exact:
        return [port for port in found if port.hca in names]
    return [port for port in found if any(port.hca.startswith(name) for name in names)]


def hca_of_another_port(host: Host) -> Finding:
    """NCCL_IB_HCA and NCCL_SOCKET_IFNAME of a running engine, beside link and addresses."""
    found = _need_ports(host)
    environments = engine_environments(host)
    if not environments:
        return not_checked("no engine is running whose environment may be read")
    with_address = addresses(host)
    for pid, told in environments.items():
        named = _named(told, found)
        if told.get("NCCL_IB_HCA") and not any(port.active for port in named):
            return problem(
                f"pid {pid}: NCCL_IB_HCA={told['NCCL_IB_HCA']} names no port with link; with link "
                f"are {', '.join(port.hca for port in found if port.active) or 'none'}",
                "name the adapters of the cabled port, for each node its own",
            )
        for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            name = told.get(variable, "").lstrip("=")
            if name and not any(each.startswith(name) for each in with_address):
                return problem(
                    f"pid {pid}: {variable}={name} has no IPv4 address",
                    "name the interface that carries the node's address",
                )
    return clean("adapters and interfaces that engines were given have link and addresses")


def one_adapter_of_two(host: Host) -> Finding:
    """One cable's bandwidth comes through two adapters."""
    found = _need_ports(host)
    usable = [port.hca for port in found if port.usable]
    if len(usable) < 2:
        idle = [port.hca for port in found if port.active and not port.usable]
        if usable and idle:
            return problem(
                f"{idle[0]} has link and no IPv4 address; only {usable[0]} can be used",
                "give the second adapter of the port an address in a subnet of its own",
            )
        return not_checked("one adapter has link")
    for pid, told in engine_environments(host).items():
        named = [port.hca for port in _named(told, found) if port.usable]
        if len(named) == 1:
            return problem(
                f"pid {pid} uses {named[0]} alone, {', '.join(usable)} have link and addresses",
                f"set NCCL_IB_HCA={','.join(usable)}",
            )
    if not engine_environments(host):
        return inconclusive(f"{', '.join(usable)} can be used; no engine is running")
    return clean(f"engines may use {', '.join(usable)}")


def addresses_not_kept(host: Host) -> Finding:
    """Whether a file that survives a reboot names each addressed interface of an adapter."""
    with_address = addresses(host)
    fabric = {
        interface
        for port in _need_ports(host)
        for interface in interfaces_of(host, port.hca)
        if interface in with_address
    }
    if not fabric:
        return not_checked("no interface of an RDMA device has an address")
    files = {name: host.get(name) or "" for name in host.matching(_CONFIGURED)}
    if host.get("/etc/dgx-release") is not None:
        # There netplan owns the network, and what NetworkManager alone knows goes at a reboot.
        files = {name: text for name, text in files.items() if "NetworkManager" not in name}
    lost = [each for each in sorted(fabric) if not any(_names(t, each) for t in files.values())]
    if not lost:
        return clean(f"{', '.join(sorted(fabric))} stand in the network's configuration")
    if any(re.search(r"match:|\[Match\]|macaddress", text) for text in files.values()):
        return inconclusive(f"{', '.join(lost)} are not named, and some entries match by pattern")
    return problem(
        f"{', '.join(lost)} have addresses that no file in /etc names",
        "write them into a file of their own under /etc/netplan, then netplan apply",
    )


def _names(text: str, interface: str) -> bool:
    return bool(re.search(rf"(?<![\w.-]){re.escape(interface)}(?![\w.-])", text))


def pcie_errors(host: Host) -> Finding:
    """Counters of errors that PCI Express could not correct."""
    if not host.lines("hca"):
        return not_checked("no RDMA device here")
    counters = host.lines("pcie_errors")
    if not counters:
        return not_checked("the kernel counts no PCI Express errors of the adapters")
    bad = [line for line in counters if int(line.split()[-1]) > 0]
    if not bad:
        return clean("no error that could not be corrected since boot")
    hca = bad[0].split("/")[4]
    return problem(
        f"{hca}: {sum(int(line.split()[-1]) for line in bad)} uncorrected PCI Express errors",
        "let the machine cool, check cable and firmware of the adapter; a soft lock follows",
    )


_TW = "https://github.com/tonyd2wild/DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark"
_EUGR = "https://github.com/eugr/spark-vllm-docker"
CHECKS = (
    Check(
        "rdma-devices-missing",
        "slows",
        "NCCL falls back to TCP sockets",
        "https://github.com/KI-KUBE/dgxarley",
        rdma_devices_missing,
    ),
    Check(
        "gid-unusable",
        "stops",
        "RDMA connections fail on a wrong entry of the GID table",
        f"{_TW}/issues/38",
        gid_unusable,
    ),
    Check(
        "hca-of-another-port",
        "stops",
        "an engine was given an adapter without link or an interface without address",
        "https://github.com/MiaAI-Lab/Hy3-Dual-DGX-Spark",
        hca_of_another_port,
    ),
    Check(
        "one-adapter-of-two",
        "slows",
        "half of a cable's bandwidth is not used",
        _EUGR,
        one_adapter_of_two,
    ),
    Check(
        "addresses-not-kept",
        "stops",
        "the fabric's addresses are gone after a reboot",
        f"{_TW}/issues/38",
        addresses_not_kept,
    ),
    Check(
        "pcie-errors",
        "stops",
        "the adapter loses its link under heat",
        "https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/146",
        pcie_errors,
    ),
)

"""RDMA ports, their GID tables and the addresses of interfaces, as /sys and ``ip`` show them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field

from hy3.doctor.host import Host

_ENTRY = re.compile(r"/sys/class/infiniband/([^/]+)/ports/(\d+)/([^:]+):(.*)")
_IPV4_GID = re.compile(r"(?:0000:){5}ffff:([0-9a-f]{4}):([0-9a-f]{4})")


@dataclass(frozen=True)
class Gid:
    """One used entry of a port's table; ``address`` is None unless it stands for an IPv4 one."""

    address: str | None
    kind: str  # "RoCE v2", "IB/RoCE v1"

    @property
    def usable(self) -> bool:
        """Whether NCCL can reach another machine with it: RoCE v2, routed by IPv4."""
        return self.kind == "RoCE v2" and self.address is not None


@dataclass(frozen=True)
class Port:
    """One port of a host channel adapter."""

    hca: str
    number: int
    active: bool
    gids: dict[int, Gid] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether it has link and an address."""
        return self.active and any(gid.usable for gid in self.gids.values())


def ports(host: Host) -> list[Port]:
    """Every RDMA port, in order of its name."""
    raw: dict[tuple[str, int], dict[str, str]] = {}
    for line in host.lines("infiniband"):
        found = _ENTRY.fullmatch(line)
        if found:
            raw.setdefault((found[1], int(found[2])), {})[found[3]] = found[4].strip()
    return [
        Port(hca, number, "ACTIVE" in entries.get("state", ""), _gids(entries))
        for (hca, number), entries in sorted(raw.items())
    ]


def interfaces_of(host: Host, hca: str) -> list[str]:
    """Network interfaces of the same function."""
    start = f"/sys/class/infiniband/{hca}/device/net/"
    return [path.removeprefix(start) for path in host.lines("hca_interfaces") if start in path]


def addresses(host: Host) -> dict[str, list[str]]:
    """Interface -> its IPv4 addresses."""
    found: dict[str, list[str]] = {}
    for line in host.lines("addresses"):
        each = re.match(r"\d+:\s+([^\s@]+)\S*\s+inet\s+([\d.]+)", line)
        if each:
            found.setdefault(each[1], []).append(each[2])
    return found


def engine_environments(host: Host) -> dict[int, dict[str, str]]:
    """pid -> what an engine's environment says of the network.

    Raises:
        CannotTell: an engine is another user's.
    """
    found = {}
    for name in host.matching(r"environment \d+"):
        pairs = (line.partition("=") for line in host.lines(name))
        found[int(name.split()[1])] = {key: value for key, _, value in pairs}
    return found


def in_range(address: str, network: str) -> bool:
    """Whether an address belongs to a network; False for what is no network."""
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _gids(entries: dict[str, str]) -> dict[int, Gid]:
    found = {}
    for key, value in entries.items():
        folder, _, index = key.rpartition("/")
        if folder == "gids":
            kind = entries.get(f"gid_attrs/types/{index}", "")
            found[int(index)] = Gid(_ipv4(value), kind)
    return found


def _ipv4(gid: str) -> str | None:
    found = _IPV4_GID.fullmatch(gid)
    return str(ipaddress.IPv4Address(int(found[1] + found[2], 16))) if found else None

"""What changes by itself: GID tables, links and addresses of a machine, read again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hy3.doctor.check import Check, Finding, clean, inconclusive, not_checked, problem
from hy3.doctor.host import Host, gather_network
from hy3.doctor.ports import addresses, ports
from hy3.errors import EnvironmentFault

_READINGS = 20
_LEAST_INTERVAL_S = 1.0


@dataclass(frozen=True)
class Watched:
    """Readings of one machine, the first one before any waiting."""

    hosts: tuple[Host, ...]
    seconds: float
    lost: str = ""  # why a reading failed, when one did


def watch(
    host: Host,
    seconds: float,
    read: Callable[[Host], Host] = gather_network,
    sleep: Callable[[float], None] = time.sleep,
) -> Watched:
    """Read a machine's network some twenty times within ``seconds``; not again for 0.

    Without an RDMA device there is nothing to wait for.
    """
    found = [host]
    if not ports(host):
        return Watched((host,), seconds)
    interval_s = max(seconds / _READINGS, _LEAST_INTERVAL_S)
    for _ in range(int(seconds / interval_s)):
        sleep(interval_s)
        try:
            found.append(read(host))
        except EnvironmentFault as fault:
            return Watched(tuple(found), seconds, str(fault))
    return Watched(tuple(found), seconds)


def _state(host: Host) -> dict[str, str]:
    """Everything that should stay as it is, each with what it is now."""
    state = {f"the address of {name}": ", ".join(each) for name, each in addresses(host).items()}
    for port in ports(host):
        state[f"{port.hca} port {port.number}"] = "up" if port.active else "down"
        for index, gid in port.gids.items():
            what = f"{gid.address or 'no IPv4 address'}, {gid.kind}"
            state[f"{port.hca} GID {index}"] = what
    return state


def _changes(hosts: Sequence[Host]) -> list[str]:
    states = [_state(host) for host in hosts]
    found = []
    for number, (before, now) in enumerate(pairwise(states), start=2):
        for name in sorted(before.keys() | now.keys()):
            was, is_now = before.get(name, "absent"), now.get(name, "absent")
            if was != is_now:
                found.append(f"reading {number}: {name} was {was}, is {is_now}")
    return found


def fabric_drifts(watched: Watched) -> Finding:
    """Ports, GID tables and addresses over the readings."""
    first = watched.hosts[0]
    if not ports(first):
        return not_checked("no RDMA device here")
    if not watched.seconds:
        return not_checked("read once: --watch 300 reads it again for 300 s")
    changes = _changes(watched.hosts)
    if changes:
        more = f", and {len(changes) - 3} changes more" if len(changes) > 3 else ""
        return problem(
            "; ".join(changes[:3]) + more,
            "do not pin NCCL_IB_GID_INDEX (NCCL_IB_ADDR_FAMILY=AF_INET finds it), keep "
            "NetworkManager off the fabric's interfaces, look at cable and firmware",
        )
    if watched.lost:
        return inconclusive(f"a reading failed: {watched.lost}")
    return clean(f"{len(watched.hosts)} readings in {watched.seconds:g} s are the same")


CHECKS: tuple[Check[Watched], ...] = (
    Check(
        "fabric-drifts",
        "stops",
        "the GID table or the link changes while nobody touches it",
        "https://github.com/tonyd2wild/DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark"
        "/issues/38",
        fabric_drifts,
    ),
)

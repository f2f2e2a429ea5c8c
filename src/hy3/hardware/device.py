"""``Device`` and ``Hardware``: what a plan needs to know of the machines it is for.

The table is devices.toml; ``parse_hardware`` reads the short form that people type, ``2xgb10``.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from hy3.errors import InputError

MIB = 2**20
GIB = 2**30
_SHORT = re.compile(r"(?:([0-9]{1,6})x)?(?:([0-9]{1,6})x)?([a-z][a-z0-9-]*)")


@dataclass(frozen=True)
class Device:
    """One accelerator; bytes, bytes a second and seconds."""

    name: str  # as it is typed
    label: str
    kind: str  # "unified", "card" or "datacentre": those of a kind share the constants of speed
    visible_bytes: int  # what the driver reports
    free_bytes: int  # of that, left for an engine at boot
    bandwidth_bytes_s: float
    flops: float  # dense BF16, a second
    capability: tuple[int, int]  # CUDA compute capability
    unified: bool  # memory is the machine's own, page cache and all
    per_node: int  # in a machine as it is sold
    link_bytes_s: float  # to its peers, one direction
    collective_s: float  # one small all-reduce between peers
    note: str
    sources: dict[str, str]  # figure -> where it is from


@dataclass(frozen=True)
class Hardware:
    """``nodes`` machines with ``per_node`` devices of one kind each."""

    device: Device
    nodes: int
    per_node: int

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.nodes * self.per_node

    def used_by(self, ranks: int) -> Hardware:
        """The machines of it that ``ranks`` devices are on, filled one after another."""
        return replace(self, nodes=min(self.nodes, -(-ranks // self.per_node)))

    @property
    def text(self) -> str:
        """The form that people read: ``2 x DGX Spark (GB10)``."""
        machines = f" in {self.nodes} machines" if self.nodes > 1 and self.per_node > 1 else ""
        return f"{self.devices} x {self.device.label}{machines}"


def load_devices() -> dict[str, Device]:
    """The table, by the name that is typed."""
    text = resources.files("hy3.hardware").joinpath("devices.toml").read_text(encoding="utf-8")
    return {name: _device(name, entry) for name, entry in tomllib.loads(text).items()}


def parse_hardware(text: str) -> Hardware:
    """``gb10``, ``2xgb10`` (devices), or ``2x4xh100`` (machines, devices in each).

    The first form spreads the devices over as many machines as they are sold in.

    Raises:
        InputError: listing the known devices.
    """
    devices = load_devices()
    found = _SHORT.fullmatch(text.strip().lower())
    if not found or found[3] not in devices:
        raise InputError(
            f"{text!r} is not known",
            hint=f"write COUNTxDEVICE, as 2xgb10; devices are {', '.join(devices)}",
            where="--hardware",
        )
    device = devices[found[3]]
    first, second = (int(part) if part else None for part in (found[1], found[2]))
    if 0 in (first, second):
        raise InputError(
            f"{text!r} is no device at all",
            hint=f"write how many there are, as 1x{device.name}",
            where="--hardware",
        )
    if first and second:
        return Hardware(device, nodes=first, per_node=second)
    count = first or 1
    if count <= device.per_node:
        return Hardware(device, nodes=1, per_node=count)
    if count % device.per_node:
        raise InputError(
            f"{count} devices do not fill machines of {device.per_node}",
            hint=f"say how they are spread: MACHINESxDEVICESx{device.name}",
            where="--hardware",
        )
    return Hardware(device, nodes=count // device.per_node, per_node=device.per_node)


def _device(name: str, entry: dict[str, Any]) -> Device:
    major, minor = entry["capability"]
    return Device(
        name=name,
        label=entry["label"],
        kind=entry["kind"],
        visible_bytes=entry["visible_mib"] * MIB,
        free_bytes=entry["free_mib"] * MIB,
        bandwidth_bytes_s=entry["bandwidth_gb_s"] * 1e9,
        flops=entry["tflops_bf16"] * 1e12,
        capability=(major, minor),
        unified=entry["unified"],
        per_node=entry["per_node"],
        link_bytes_s=entry["link_gb_s"] * 1e9,
        collective_s=entry["collective_us"] * 1e-6,
        note=entry.get("note", ""),
        sources=dict(entry["sources"]),
    )

"""Versions of Python packages and of NCCL on a host, and the devices that its driver names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hy3.doctor.engine_matrix import version_key
from hy3.doctor.host import Host

_DIST_INFO = re.compile(r"(.+?)-([^-]+)\.dist-info")
_SONAME = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)$")
_UNIFIED = ("GB10",)


@dataclass(frozen=True)
class Gpu:
    """One line of nvidia-smi; None where the driver says N/A."""

    name: str
    capability: tuple[int, ...]
    driver: str
    clock_mhz: float | None
    top_clock_mhz: float | None
    busy_percent: float | None
    power_w: float | None
    limits: int  # bits of what holds the clocks down
    power_limit_w: float | None = None

    @property
    def unified(self) -> bool:
        """Whether its memory is the machine's."""
        return any(part in self.name for part in _UNIFIED)


def gpus(host: Host) -> list[Gpu]:
    """The devices; CannotTell when the driver answers with an error."""
    return [parse_gpu(line) for line in host.lines("gpus")]


def is_unified(host: Host) -> bool:
    """Whether an engine's memory and the page cache are one."""
    return any(gpu.unified for gpu in gpus(host))


def package_versions(host: Host, pattern: str) -> dict[str, str]:
    """Where -> version of a package that is installed: ``pid 12`` or ``this machine``."""
    found = {}
    for name in host.matching(r"packages( \d+)?"):
        pid = name.partition(" ")[2]
        for line in host.lines(name):
            each = _DIST_INFO.fullmatch(line)
            if each and re.fullmatch(pattern, each[1]):
                found[f"pid {pid}" if pid else "this machine"] = each[2]
    return found


def nccl_versions(host: Host) -> dict[str, set[str]]:
    """Where -> every version of NCCL there; of a running engine, those that it has mapped.

    Raises:
        CannotTell: an engine is another user's.
    """
    found: dict[str, set[str]] = {}
    for name in host.matching(r"libraries \d+"):
        pid = name.split()[1]
        packaged = package_versions(host, r"nvidia_nccl_cu\d+").get(f"pid {pid}")
        for path in host.lines(name):
            version = packaged if "-packages/" in path else _version_of(path)
            found.setdefault(f"pid {pid}", set()).add(version or path)
    if found:
        return found
    installed = {version for path in host.lines("nccl") if (version := _version_of(path))}
    packaged = package_versions(host, r"nvidia_nccl_cu\d+").get("this machine")
    installed |= {packaged} if packaged else set()
    return {"this machine": installed} if installed else {}


def _version_of(path: str) -> str | None:
    found = _SONAME.search(path)
    return found[1] if found else None


def parse_gpu(line: str) -> Gpu:
    """One line of nvidia-smi with the fields that gather.sh and gpu_load.py ask for."""
    name, capability, driver, *rest = (part.strip() for part in line.split(","))
    clock, top, busy, power = (_number(part) for part in rest[:4])
    return Gpu(
        name=name,
        capability=version_key(capability),
        driver=driver,
        clock_mhz=clock,
        top_clock_mhz=top,
        busy_percent=busy,
        power_w=power,
        limits=int(rest[4], 16) if rest[4].startswith("0x") else 0,
        power_limit_w=_number(rest[5]) if len(rest) > 5 else None,
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None

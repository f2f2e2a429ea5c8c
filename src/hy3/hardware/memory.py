"""How much memory this process may still take on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that can be taken without swapping, within the container's limit if there is one.

    ``root`` is where ``proc`` and ``sys`` are found. Without /proc/meminfo (macOS) it is half of
    the installed memory.
    """
    free = _meminfo_available(root / "proc/meminfo")
    if free is None:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min([free, *_cgroup_headroom(root / "sys/fs/cgroup")])


def _meminfo_available(path: Path) -> int | None:
    if not path.exists():
        return None
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _cgroup_headroom(folder: Path) -> list[int]:
    """Limit minus use, of cgroup v2 and v1, where a limit is set. Page cache counts as use here,
    so the figure is on the safe side."""
    pairs = (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    )
    headroom = []
    for limit_name, used_name in pairs:
        limit, used = _read_count(folder / limit_name), _read_count(folder / used_name)
        if limit is not None and used is not None:
            headroom.append(max(limit - used, 0))
    return headroom


def _read_count(path: Path) -> int | None:
    """The number in a file; None if there is no file or no limit (``max``)."""
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8").strip()
    return int(text) if text.isdigit() else None

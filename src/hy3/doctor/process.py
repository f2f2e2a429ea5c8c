"""``Process``: one entry of /proc, and which of them belong to an inference engine."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hy3.nodes.engine_process import is_engine, leads

_COPY = re.compile(r"(^|/)(rsync|scp|sftp-server|hf|huggingface-cli)( |$)|huggingface_hub")


@dataclass(frozen=True)
class Process:
    """``command`` is empty where the command line was of no interest."""

    pid: int
    parent: int
    name: str  # as the kernel cuts it, at 15 characters
    command: str
    resident_bytes: int
    swapped_bytes: int

    @property
    def is_engine(self) -> bool:
        """Whether it is part of an inference engine."""
        return is_engine(self.name) or is_engine(self.command)

    @property
    def leads(self) -> bool:
        """Whether it is one of those that start the others and clean up after them."""
        return leads(self.name) or leads(self.command)

    @property
    def copies(self) -> bool:
        """Whether it moves files in bulk."""
        return bool(_COPY.search(self.command))

    @property
    def shown(self) -> str:
        """For evidence."""
        what = self.command.strip() or self.name
        return f"pid {self.pid} ({what[:60]}, {self.resident_bytes / 2**30:.1f} GiB)"


def parse_processes(status: str, commands: dict[int, str]) -> dict[int, Process]:
    """Lines ``/proc/PID/status:Key:<tab>value`` and command lines, put together."""
    fields: dict[int, dict[str, str]] = {}
    for line in status.splitlines():
        found = re.match(r"/proc/(\d+)/status:(\w+):\s*(.*)", line)
        if found:
            fields.setdefault(int(found[1]), {})[found[2]] = found[3].strip()
    return {
        pid: Process(
            pid=pid,
            parent=int(each.get("PPid", "0")),
            name=each.get("Name", ""),
            command=commands.get(pid, ""),
            resident_bytes=_bytes(each.get("VmRSS")),
            swapped_bytes=_bytes(each.get("VmSwap")),
        )
        for pid, each in fields.items()
    }


def engines(processes: dict[int, Process]) -> list[Process]:
    """Those of an engine, in order."""
    return [each for _, each in sorted(processes.items()) if each.is_engine]


def has_leader(process: Process, processes: dict[int, Process]) -> bool:
    """Whether it or an ancestor would end it in time."""
    seen: set[int] = set()
    current: Process | None = process
    while current and current.pid not in seen:
        if current.leads:
            return True
        seen.add(current.pid)
        current = processes.get(current.parent)
    return False


def _bytes(value: str | None) -> int:
    return int(value.split()[0]) * 1024 if value else 0

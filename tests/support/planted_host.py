"""A folder that stands for a machine: a sound one, in which tests plant faults."""

from __future__ import annotations

from pathlib import Path

from hy3.doctor.host import Host, gather_here

UNLIMITED = "Max locked memory         unlimited            unlimited            bytes     \n"
GB10 = "NVIDIA GB10, 12.1, 580.95.05, 2418, 3003, 0, 11.5, 0x0000000000000001"
H200 = "NVIDIA H200, 9.0, 580.95.05, 345, 1980, 0, 76.2, 0x0000000000000001"
MEMINFO = {
    "MemTotal": 127_600_000,
    "MemFree": 117_000_000,
    "MemAvailable": 117_500_000,
    "SwapTotal": 0,
    "SwapFree": 0,
}


class PlantedHost:
    """Writes files below ``root`` and reads them back through the script that runs everywhere."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file("proc/sys/vm/swappiness", "60\n")
        self.file("proc/sys/kernel/osrelease", "6.14.0-1013-nvidia\n")
        self.file("proc/self/limits", UNLIMITED)
        self.memory()
        self.process(1, "systemd", "/sbin/init")
        self.program("id", "echo ubuntu")
        self.program("nvidia-smi", f"echo '{GB10}'")

    def file(self, path: str, text: str) -> Path:
        """Write one file, its folders included."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def program(self, name: str, script: str) -> None:
        """A command that answers with what ``script`` prints."""
        self.file(f"usr/bin/{name}", f"#!/bin/sh\n{script}\n").chmod(0o755)

    def memory(self, **changed: int) -> None:
        """/proc/meminfo in kB."""
        lines = [f"{name}: {value} kB" for name, value in (MEMINFO | changed).items()]
        self.file("proc/meminfo", "\n".join(lines) + "\n")

    def process(
        self, pid: int, name: str, command: str, parent: int = 1, swap_kb: int = 0, **files: str
    ) -> None:
        """One process; ``files`` are maps, environ and limits."""
        rss, cut = 1_000_000, name[:15]
        status = f"Name:\t{cut}\nPPid:\t{parent}\nVmRSS:\t{rss} kB\nVmSwap:\t{swap_kb} kB\n"
        self.file(f"proc/{pid}/status", status)
        self.file(f"proc/{pid}/cmdline", command.replace(" ", "\0") + "\0")
        defaults = {"maps": "", "environ": "", "limits": UNLIMITED}
        for key, text in (defaults | files).items():
            self.file(f"proc/{pid}/{key}", text)

    def engine(self, **files: str) -> None:
        """A server with one worker."""
        self.process(100, "vllm", "/usr/bin/python3 /usr/local/bin/vllm serve /models/hy3", **files)
        self.process(101, "VLLM::EngineCore", "VLLM::EngineCore", parent=100, **files)

    def gather(self, nodes: int = 1) -> Host:
        """What the checks see."""
        return gather_here(self.root, nodes)


def mapped(*paths: str) -> str:
    """Lines of /proc/PID/maps."""
    return "".join(f"7f0000000000-7f0000001000 r-xp 00000000 00:1f 77 {path}\n" for path in paths)

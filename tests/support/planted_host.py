"""A folder that stands for a machine: a sound one, in which tests plant faults."""

from __future__ import annotations

from pathlib import Path

from hy3.doctor.host import Host, gather_here

UNLIMITED = "Max locked memory         unlimited            unlimited            bytes     \n"
GB10 = "NVIDIA GB10, 12.1, 580.95.05, 2418, 3003, 0, 11.5, 0x0000000000000001"
H200 = "NVIDIA H200, 9.0, 580.95.05, 345, 1980, 0, 76.2, 0x0000000000000001"
LINK_LOCAL = "fe80:0000:0000:0000:4ebb:47ff:fe00:0001"
GID_10 = "0000:0000:0000:0000:0000:ffff:c0a8:640a"  # 192.168.100.10
GID_11 = "0000:0000:0000:0000:0000:ffff:c0a8:650a"  # 192.168.101.10
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

    def hca(self, name: str, interface: str, active: bool = True, **gids: tuple[str, str]) -> None:
        """One RDMA port; ``gids`` are ``i3=("0000:...", "RoCE v2")``."""
        port = f"sys/class/infiniband/{name}/ports/1"
        self.file(f"{port}/state", "4: ACTIVE\n" if active else "1: DOWN\n")
        self.file(f"{port}/gids/9", "0000:0000:0000:0000:0000:0000:0000:0000\n")
        for index, (gid, kind) in gids.items():
            self.file(f"{port}/gids/{index[1:]}", gid + "\n")
            self.file(f"{port}/gid_attrs/types/{index[1:]}", kind + "\n")
        (self.root / f"sys/class/infiniband/{name}/device/net/{interface}").mkdir(parents=True)
        for kind in ("fatal", "nonfatal"):
            path = f"sys/class/infiniband/{name}/device/aer_dev_{kind}"
            self.file(path, f"DLP 0\nTOTAL_ERR_{kind.upper()} 0\n")
        self.file(f"sys/class/net/{interface}/mtu", "9000\n")

    def fabric(self) -> None:
        """Both adapters of a cabled port, as on a DGX Spark, and what belongs to them."""
        self.hca("rocep1s0f1", "enp1s0f1np1", i1=(LINK_LOCAL, "RoCE v2"), i3=(GID_10, "RoCE v2"))
        self.hca("roceP2p1s0f1", "enP2p1s0f1np1", i2=(GID_11, "IB/RoCE v1"), i3=(GID_11, "RoCE v2"))
        self.hca("rocep1s0f0", "enp1s0f0np0", active=False)
        self.file("dev/infiniband/uverbs0", "")
        self.addresses(enp1s0f1np1="192.168.100.10", enP2p1s0f1np1="192.168.101.10")
        self.file("etc/netplan/40-fabric.yaml", "enp1s0f1np1: {}\nenP2p1s0f1np1: {}\n")

    def addresses(self, **pairs: str) -> None:
        """What ``ip`` answers."""
        lines = [f"2: {name}    inet {ip}/24 scope global" for name, ip in pairs.items()]
        self.program("ip", "cat <<'END'\n" + "\n".join(lines) + "\nEND")

    def gather(self, nodes: int = 1) -> Host:
        """What the checks see."""
        return gather_here(self.root, nodes)


def mapped(*paths: str) -> str:
    """Lines of /proc/PID/maps."""
    return "".join(f"7f0000000000-7f0000001000 r-xp 00000000 00:1f 77 {path}\n" for path in paths)

"""Two nodes on one machine: network namespaces joined by a veth pair, one with a disk of its own.

Node a is where the test's commands run; node b runs an sshd in a mount namespace whose folder
``disk`` is a tmpfs that a cannot see. Needs root, iproute2, sshd and unshare.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NEEDED = (
    "ip",
    "tc",
    "unshare",
    "nsenter",
    "sshd",
    "ssh",
    "ssh-keygen",
    "rsync",
    "ping",
    "sha256sum",
)
ADDRESS_A, ADDRESS_B, PORT = "10.77.3.1", "10.77.3.2", 2222
_PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"


def missing_tools() -> list[str]:
    """What this machine lacks for such a test; root counts as a tool."""
    missing = [tool for tool in NEEDED if shutil.which(tool, path=_PATH) is None]
    return missing + ([] if os.geteuid() == 0 else ["root"])


@dataclass(frozen=True)
class TwoNodes:
    """The pair while it exists."""

    a: str  # names of the namespaces
    b: str
    disk: Path  # node b's own, as a path that only b sees filled
    ssh: tuple[str, ...]  # program and options that reach b from a
    inside_pid: int  # of b's sshd, for looking into its mounts

    def on_a(self, command: Sequence[str]) -> list[str]:
        """The command as it must be started to run on node a."""
        return ["ip", "netns", "exec", self.a, *command]

    def see(self, path: Path) -> bytes:
        """A file of node b's disk, read through its mounts."""
        return Path(f"/proc/{self.inside_pid}/root{path}").read_bytes()

    def size_of(self, folder: Path) -> int:
        """Bytes of the files in a folder of node b's disk, 0 while it is not there."""
        seen = Path(f"/proc/{self.inside_pid}/root{folder}")
        return sum(path.stat().st_size for path in seen.glob("*"))

    def write(self, path: Path, data: bytes) -> None:
        """Change a file of node b's disk."""
        Path(f"/proc/{self.inside_pid}/root{path}").write_bytes(data)

    def cut(self) -> None:
        """Pull the cable."""
        run(["ip", "-n", self.b, "link", "set", "vb", "down"])

    def mend(self) -> None:
        """Plug it in again."""
        run(["ip", "-n", self.b, "link", "set", "vb", "up"])

    def slow(self, rate: str) -> None:
        """Limit the link, so that a cut can fall into a transfer."""
        command = ["ip", "netns", "exec", self.a, "tc", "qdisc", "replace", "dev", "va", "root"]
        run([*command, "tbf", "rate", rate, "burst", "64kb", "latency", "200ms"])


def run(command: Sequence[str]) -> None:
    """A short command that must work."""
    subprocess.run(command, check=True, capture_output=True, timeout=30, env=environment())


def environment() -> dict[str, str]:
    """With the folders of system programs on PATH."""
    return {**os.environ, "PATH": _PATH}


@contextmanager
def two_nodes(work: Path) -> Iterator[TwoNodes]:
    """Make the pair and take it away again, its processes by pid."""
    a, b = f"hy3a{os.getpid()}", f"hy3b{os.getpid()}"
    disk = work / "disk"
    disk.mkdir()
    sshd: subprocess.Popen[bytes] | None = None
    try:
        for name in (a, b):
            run(["ip", "netns", "add", name])
            run(["ip", "-n", name, "link", "set", "lo", "up"])
        pair = ["type", "veth", "peer", "name", "vb", "netns", b]
        run(["ip", "link", "add", "va", "netns", a, *pair])
        for name, device, address in ((a, "va", ADDRESS_A), (b, "vb", ADDRESS_B)):
            run(["ip", "-n", name, "addr", "add", f"{address}/24", "dev", device])
            run(["ip", "-n", name, "link", "set", device, "up"])
        options = _keys(work)
        inner = (
            f"mount -t tmpfs tmpfs {disk} && exec $(command -v sshd) -D -e -f {work}/sshd_config"
        )
        command = ["ip", "netns", "exec", b, "unshare", "--mount", "sh", "-c", inner]
        log = (work / "sshd.log").open("wb")
        sshd = subprocess.Popen(command, stdout=log, stderr=log, env=environment())
        ssh = ("ssh", "-p", str(PORT), *options)
        nodes = TwoNodes(a, b, disk, ssh, sshd.pid)
        _wait_for_ssh(nodes)
        yield nodes
    finally:
        if sshd is not None:
            sshd.terminate()
            sshd.wait(timeout=10)
        for name in (a, b):
            for pid in _pids(name):
                os.kill(pid, 9)
            subprocess.run(["ip", "netns", "del", name], env=environment(), capture_output=True)


def _pids(namespace: str) -> list[int]:
    command = ["ip", "netns", "pids", namespace]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    return [int(word) for word in done.stdout.split()]


def _keys(work: Path) -> list[str]:
    """A host key, a user key and the configuration of sshd; returns ssh's options."""
    for name in ("host", "user"):
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(work / name)])
    (work / "authorized").write_bytes((work / "user.pub").read_bytes())
    (work / "sshd_config").write_text(
        f"Port {PORT}\nListenAddress {ADDRESS_B}\nHostKey {work}/host\nPidFile none\n"
        f"AuthorizedKeysFile {work}/authorized\nStrictModes no\nPermitRootLogin yes\n"
        "PasswordAuthentication no\nUsePAM no\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants its folder, which its service makes
    options = ["-i", str(work / "user"), "-F", "none", "-o", "StrictHostKeyChecking=no"]
    options += ["-o", f"UserKnownHostsFile={work}/known", "-o", "LogLevel=ERROR"]
    return [*options, "-o", "ServerAliveInterval=1"]  # a cut cable is noticed after three seconds


def _wait_for_ssh(nodes: TwoNodes) -> None:
    command = nodes.on_a([*nodes.ssh, "-o", "ConnectTimeout=1", f"root@{ADDRESS_B}", "true"])
    for _ in range(50):
        if subprocess.run(command, capture_output=True, env=environment()).returncode == 0:
            return
        time.sleep(0.2)
    raise RuntimeError("sshd does not answer in its namespace")

"""The path between two nodes, by sending something over it: MTU both ways, then all-reduces.

A link can be up, answer pings and still hang a launch; so nothing here is read from a setting.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from hy3.doctor.check import Check, Finding, clean, inconclusive, problem
from hy3.doctor.host import Host
from hy3.doctor.links import way_of
from hy3.doctor.ports import addresses, ports

_IP_AND_ICMP_BYTES = 28
_PINGS = 5
_LOSS = re.compile(r"(\d+(?:\.\d+)?)% packet loss")
# Runs a command on one of the two nodes: (exit status, output).
Runner = Callable[[Sequence[str], float], tuple[int, str]]


@dataclass(frozen=True)
class Fabric:
    """Two nodes, and the addresses by which their engines will meet."""

    hosts: tuple[Host, Host]
    addresses: tuple[str, str]
    mtu: int
    python: tuple[str, ...]  # what starts the engine's, on both nodes
    port: int = 29400

    @property
    def rdma(self) -> int:
        """RDMA adapters with link and address, on the node that has fewer."""
        return min(sum(port.usable for port in ports(host)) for host in self.hosts)

    @property
    def interfaces(self) -> tuple[str, str]:
        """Those that carry the two addresses; empty where a node shows none that does."""
        first, second = (
            next((name for name, each in addresses(host).items() if address in each), "")
            for host, address in zip(self.hosts, self.addresses, strict=True)
        )
        return first, second

    def runner(self, index: int) -> Runner:
        """Runs on one of the two."""

        def run(command: Sequence[str], timeout_s: float) -> tuple[int, str]:
            full = self.hosts[index].node.command(*command)
            try:
                done = subprocess.run(full, capture_output=True, text=True, timeout=timeout_s)
            except (OSError, subprocess.TimeoutExpired) as error:
                return 255, str(error)
            return done.returncode, done.stdout + done.stderr

        return run

    def rank(self, index: int) -> tuple[str, ...]:
        """The command that reads a Python script on one of the two."""
        return self.hosts[index].node.command(*self.python)


@dataclass(frozen=True)
class Sizes:
    """One size of an all-reduce."""

    nbytes: int
    median_us: float
    right: bool

    @property
    def bytes_s(self) -> float:
        """Bytes of the buffer a second; with two ranks each link carries just them."""
        return self.nbytes / (self.median_us * 1e-6)


def check_mtu(run: Runner, address: str, mtu: int) -> Finding:
    """Send packets of the whole MTU that may not be split, and count those that come back."""
    size = mtu - _IP_AND_ICMP_BYTES
    command = [
        "ping",
        "-M",
        "do",
        "-c",
        str(_PINGS),
        "-i",
        "0.2",
        "-W",
        "1",
        "-s",
        str(size),
        address,
    ]
    code, text = run(command, 20.0)
    found = _LOSS.search(text)
    if found is None:
        why = text.strip().splitlines()[-1] if text.strip() else f"exit {code}"
        return inconclusive(f"ping gives no count ({why})", "install iputils-ping")
    lost = float(found[1])
    if lost == 0:
        return clean(f"{_PINGS} packets of {mtu} bytes to {address} came back")
    if lost < 100:
        evidence = f"{lost:.0f} % of packets of {mtu} bytes to {address} are lost"
        return problem(evidence, "look at the cable and the port's error counters")
    code, text = run(["ping", "-c", "2", "-i", "0.2", "-W", "1", address], 10.0)
    if code == 0:
        evidence = f"small packets reach {address}, those of {mtu} bytes do not"
        fix = f"set MTU {mtu} on both nodes' interfaces and on the switch between them"
        return problem(evidence, fix)
    fix = "check the cable, the link and the address of both nodes"
    return problem(f"{address} does not answer at all", fix)


def all_reduce_script() -> str:
    """The text of the script that the engine's Python runs on both nodes."""
    return resources.files("hy3.doctor").joinpath("all_reduce.py").read_text(encoding="utf-8")


def run_all_reduce(
    leader: Sequence[str],
    follower: Sequence[str],
    address: str,
    port: int,
    timeout_s: float = 120,
    rdma: int = 0,
    interfaces: tuple[str, str] = ("", ""),
) -> Finding:
    """Start both ranks and judge what rank 0 prints.

    Args:
        leader: the command that runs a Python with the script on its stdin, on the first node
        follower: the same on the second
        address: the first node's on the fabric
        rdma: adapters that could be used on both nodes
        interfaces: those that carry the two addresses; where empty, each library chooses
    """
    script = all_reduce_script().encode()
    ranks = [
        subprocess.Popen(
            [*command, "-", str(rank), address, str(port), str(timeout_s / 2), *interface.split()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank, (command, interface) in enumerate(
            zip((leader, follower), interfaces, strict=True)
        )
    ]
    try:
        for process in reversed(ranks):
            assert process.stdin
            process.stdin.write(script)
            process.stdin.close()
            process.stdin = None
        outputs = [process.communicate(timeout=timeout_s) for process in ranks]
    except subprocess.TimeoutExpired:
        fix = "check GID, interface names and firewall; see NCCL_DEBUG=INFO on both nodes"
        evidence = f"no all-reduce finished within {timeout_s:.0f} s"
        return problem(evidence, fix)
    except BrokenPipeError:
        return inconclusive("a rank did not start", "run the script by hand")
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    if any(process.returncode for process in ranks):
        said = outputs[0][1].decode(errors="replace").strip().splitlines() or ["no output"]
        fix = "the engine's Python must have torch on both nodes and reach the other's address"
        return problem(f"a rank failed ({said[-1][:160]})", fix)
    # NCCL writes to the same place, before the result.
    *log, result = outputs[0][0].decode(errors="replace").splitlines()
    return judge_all_reduce(json.loads(result), "\n".join(log), rdma)


def judge_all_reduce(said: dict[str, object], log: str, rdma: int = 0) -> Finding:
    """Right sums, and latency and rate beside what the way that the data went should give.

    Args:
        said: what rank 0 measured
        log: what NCCL wrote of itself
        rdma: adapters that could be used on both nodes
    """
    rows = said["results"]
    assert isinstance(rows, list)
    sizes = [Sizes(row["bytes"], row["median_us"], row["right"]) for row in rows]
    small, large = sizes[0], sizes[-1]
    way = way_of(str(said["backend"]), log)
    link = way.link
    name = link.label if link else f"{said['backend']} over {way.network}"
    evidence = (
        f"{name}: {small.nbytes // 1024} kB in {small.median_us:.0f} us"
        f"{f' (usual {link.usual_small_us:g})' if link else ''}, "
        f"{large.nbytes >> 20} MB at {large.bytes_s / 1e9:.2f} GB/s"
        f"{f' (usual {link.usual_large_gb_s:g})' if link else ''}"
    )
    if not all(size.right for size in sizes):
        return problem(f"{evidence}; the sums are wrong", "replace cable or NIC")
    if link is None:
        return inconclusive(f"{evidence}; what it should give is not known")
    if way.network == "Socket" and rdma:
        return problem(f"{evidence}, though both nodes have RDMA", link.fix)
    if way.network == "IB" and len(way.adapters) < rdma:
        found = ", ".join(way.adapters)
        fix = "name every adapter of the cabled port in NCCL_IB_HCA"
        return problem(f"{evidence}; NCCL found {found} of {rdma} adapters", fix)
    slow = small.median_us > link.worst_small_us
    if slow or large.bytes_s < link.worst_large_gb_s * 1e9:
        worst = f"{link.worst_small_us:g} us and {link.worst_large_gb_s:g} GB/s"
        return problem(f"{evidence}; worse than {worst}", link.fix)
    tested = "" if said["backend"] == "nccl" else " (no GPU, so no RDMA was tested)"
    return clean(f"{evidence}; sums are right{tested}")


def _mtu(index: int) -> Callable[[Fabric], Finding]:
    return lambda fabric: check_mtu(fabric.runner(index), fabric.addresses[1 - index], fabric.mtu)


_MTU_REPORT = (
    "https://github.com/tonyd2wild/"
    "DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark/issues/38"
)
FABRIC_CHECKS: tuple[Check[Fabric], ...] = (
    Check("mtu-there", "stops", "Large packets do not reach the second node", _MTU_REPORT, _mtu(0)),
    Check("mtu-back", "stops", "Large packets do not reach the first node", _MTU_REPORT, _mtu(1)),
    Check(
        "all-reduce",
        "stops",
        "Two ranks cannot move data, or move it slowly",
        "https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks/issues/3",
        lambda fabric: run_all_reduce(
            fabric.rank(0),
            fabric.rank(1),
            fabric.addresses[0],
            fabric.port,
            rdma=fabric.rdma,
            interfaces=fabric.interfaces,
        ),
    ),
)

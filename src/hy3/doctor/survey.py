"""``survey``: every check on every subject, as one list of answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from hy3.doctor.check import Check, Finding, not_checked, problem
from hy3.doctor.checks.drift import watch
from hy3.doctor.checks.dry_load import not_asked, run_dry_load
from hy3.doctor.checks.load import run_load
from hy3.doctor.fabric import Fabric
from hy3.doctor.host import Host, gather_here, gather_remote
from hy3.doctor.model_case import ModelCase
from hy3.doctor.registry import (
    BETWEEN_NODES,
    DRY_LOAD_CHECKS,
    FABRIC_CHECKS,
    HOST_CHECKS,
    LOAD_CHECKS,
    MODEL_CHECKS,
    WATCH_CHECKS,
)
from hy3.errors import EnvironmentFault
from hy3.nodes.node import LOCAL, Node

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What is to be looked at: machines (none: this one), and a checkpoint if there is one."""

    nodes: tuple[str, ...]
    case: ModelCase | None

    def again(self) -> Request:
        """The same, with nothing remembered of the files."""
        case = ModelCase(self.case.folder, self.case.engine) if self.case else None
        return Request(self.nodes, case)


@dataclass(frozen=True)
class Trials:
    """What is tried out, and not only read; 0 seconds: not at all."""

    python: tuple[str, ...] = ("python3",)  # what starts the engine's, on every machine
    watch_s: float = 0
    gpu_load_s: float = 0
    dry_load: bool = False
    fabric: tuple[str, str] | None = None  # addresses by which two machines meet
    mtu: int = 9000


@dataclass(frozen=True)
class Answer:
    """One check's finding on one subject."""

    check: str
    severity: str
    title: str
    source: str
    where: str
    finding: Finding

    def as_json(self) -> dict[str, Any]:
        """One element of ``checks``."""
        fix = self.finding.fix
        return {
            "id": self.check,
            "where": self.where,
            "verdict": self.finding.verdict,
            "severity": self.severity,
            "title": self.title,
            "evidence": self.finding.evidence,
            "fix": fix.text if fix else None,
            "commands": fix.shown() if fix else [],
            "source": self.source,
        }


def answers_of(checks: Iterable[Check[T]], subject: T, where: str) -> Iterator[Answer]:
    """Run the checks on one subject."""
    for check in checks:
        yield Answer(check.id, check.severity, check.title, check.source, where, check.run(subject))


def look(request: Request, trials: Trials) -> tuple[list[Host], list[Answer]]:
    """Everything: what can be read, and what is to be tried out."""
    hosts, answers = examine(request)
    answers += examine_at_work(hosts, request.case, trials)
    if len(hosts) == 2:
        answers += examine_fabric(hosts, trials)
    return hosts, answers


def examine(request: Request) -> tuple[list[Host], list[Answer]]:
    """Everything that reads only: machines, what lies between them, the checkpoint."""
    hosts, answers = gather(request.nodes)
    answers += examine_hosts(hosts)
    if request.case:
        answers += examine_model(request.case)
    return hosts, answers


def gather(nodes: Sequence[str]) -> tuple[list[Host], list[Answer]]:
    """The hosts that could be examined, all at once, and an answer for each that could not."""
    if not nodes:
        return [gather_here()], []
    hosts: list[Host] = []
    lost: list[Answer] = []
    with ThreadPoolExecutor(len(nodes)) as pool:
        for node, result in zip(nodes, pool.map(lambda n: _one(n, len(nodes)), nodes), strict=True):
            if isinstance(result, Host):
                hosts.append(result)
            else:
                finding = problem(result.message, result.hint)
                lost.append(
                    Answer(
                        "node-unreachable", "stops", "a node cannot be examined", "", node, finding
                    )
                )
    return hosts, lost


def examine_hosts(hosts: Sequence[Host]) -> list[Answer]:
    """Every check of one host, on each, then those between them."""
    found = [each for host in hosts for each in answers_of(HOST_CHECKS, host, host.name)]
    if len(hosts) > 1:
        found += answers_of(BETWEEN_NODES, hosts, "all")
    return found


def examine_model(case: ModelCase) -> list[Answer]:
    """Every check of a checkpoint, and of the engine that is to serve it."""
    return list(answers_of(MODEL_CHECKS, case, case.name))


def examine_fabric(hosts: Sequence[Host], trials: Trials) -> list[Answer]:
    """Every check of the path between two nodes; they send data and change nothing."""
    names = " and ".join(host.name for host in hosts)
    if trials.fabric is None:
        unasked = not_checked("not asked for: --fabric ADDRESS,ADDRESS moves data between the two")
        return [
            Answer(each.id, each.severity, each.title, each.source, names, unasked)
            for each in FABRIC_CHECKS
        ]
    fabric = Fabric((hosts[0], hosts[1]), trials.fabric, trials.mtu, trials.python)
    return list(answers_of(FABRIC_CHECKS, fabric, names))


def examine_at_work(hosts: Sequence[Host], case: ModelCase | None, trials: Trials) -> list[Answer]:
    """What takes time, all machines at once; each check that nobody asked for says so."""

    def one(host: Host) -> list[Answer]:
        watched = watch(host, trials.watch_s)
        load = run_load(host, trials.python, trials.gpu_load_s)
        return [
            *answers_of(WATCH_CHECKS, watched, host.name),
            *answers_of(LOAD_CHECKS, load, host.name),
        ]

    with ThreadPoolExecutor(max(len(hosts), 1)) as pool:
        found = [each for answers in pool.map(one, hosts) for each in answers]
    if case:
        loaded = run_dry_load(case.folder, trials.python) if trials.dry_load else not_asked()
        found += answers_of(DRY_LOAD_CHECKS, loaded, case.name)
    return found


def _one(node: str, count: int) -> Host | EnvironmentFault:
    try:
        return gather_here(nodes=count) if node == LOCAL else gather_remote(Node(node), count)
    except EnvironmentFault as fault:
        return fault

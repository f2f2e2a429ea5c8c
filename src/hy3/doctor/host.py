"""``Host``: what is known of one machine, gathered by one script that runs here or through ssh.

The script (gather.sh) is the fixed list of everything that is ever read. Checks see its records
only, so a remote machine, this one, and a folder that stands for one in a test are all alike.
"""

from __future__ import annotations

import base64
import binascii
import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

from hy3.doctor.check import CannotTell
from hy3.doctor.process import Process, parse_processes
from hy3.errors import EnvironmentFault
from hy3.nodes.engine_process import ENGINE
from hy3.nodes.node import HERE, Node

_TIMEOUT_S = 120


@dataclass(frozen=True)
class Record:
    """One thing that was read; ``status`` is ok, absent, denied or failed."""

    status: str
    text: str


@dataclass(frozen=True)
class Host:
    """The records of one machine."""

    name: str
    records: dict[str, Record]
    nodes: int = 1  # machines that are to work together, this one included
    node: Node = HERE

    def get(self, name: str) -> str | None:
        """A record's text; None where there is no such thing.

        Raises:
            CannotTell: it may not be read, or the program failed.
        """
        record = self.records.get(name)
        if record is None or record.status == "absent":
            return None
        if record.status == "denied":
            raise CannotTell("INCONCLUSIVE", f"{name} may not be read by this user")
        if record.status == "failed":
            last = record.text.strip().splitlines()[-1:] or ["no output"]
            raise CannotTell("INCONCLUSIVE", f"asking for {name} fails: {last[0]}")
        return record.text

    def need(self, name: str) -> str:
        """The same, for what a check cannot do without."""
        text = self.get(name)
        if text is None:
            raise CannotTell("NOT CHECKED", f"{name} is not there")
        return text

    def lines(self, name: str) -> list[str]:
        """The lines of a record that are not empty; none where there is no such thing."""
        return [line for line in (self.get(name) or "").splitlines() if line.strip()]

    def matching(self, pattern: str) -> list[str]:
        """Names of the records that match as a whole."""
        return [name for name in self.records if re.fullmatch(pattern, name)]

    @cached_property
    def processes(self) -> dict[int, Process]:
        """Every process, by its id."""
        return parse_processes(
            self.get("processes") or "",
            {
                int(name.removeprefix("command ")): record.text
                for name, record in self.records.items()
                if name.startswith("command ")
            },
        )

    @cached_property
    def meminfo(self) -> dict[str, int]:
        """/proc/meminfo in bytes."""
        found = {}
        for line in self.need("/proc/meminfo").splitlines():
            key, _, value = line.partition(":")
            if value.split()[1:] == ["kB"]:
                found[key] = int(value.split()[0]) * 1024
        return found


def gather_here(root: Path | None = None, nodes: int = 1) -> Host:
    """This machine, or the folder ``root`` in its place."""
    return _gather(HERE, nodes, root=str(root) if root else "")


def gather_remote(node: Node, nodes: int = 1) -> Host:
    """A machine that ssh reaches without asking; one connection.

    Raises:
        EnvironmentFault: it cannot be reached, or is no machine that the script runs on.
    """
    return _gather(node, nodes)


def gather_network(host: Host) -> Host:
    """The same machine again, its network only."""
    return _gather(host.node, host.nodes, only="network")


def _gather(node: Node, nodes: int, root: str = "", only: str = "") -> Host:
    script = resources.files("hy3.doctor").joinpath("gather.sh").read_text(encoding="utf-8")
    script = f"R={shlex.quote(root)}\nONLY={only}\nENGINE={shlex.quote(ENGINE)}\n{script}"
    lines = node.run("sh", "-s", send=script.encode(), timeout_s=_TIMEOUT_S).splitlines()
    if not lines or lines[-1] != "end":
        raise _unreadable(node.name, "its answer is cut off")
    return Host(node.name, _parse(lines[:-1], node.name), nodes, node)


def _parse(lines: list[str], name: str) -> dict[str, Record]:
    """Records of one name are joined: packages come from several folders."""
    records: dict[str, Record] = {}
    for line in lines:
        try:
            key, status, content = line.split("\t")
            text = base64.b64decode(content, validate=True).decode("utf-8", "replace")
        except (ValueError, binascii.Error) as error:
            raise _unreadable(name, "its answer is garbled") from error
        before = records.get(key)
        records[key] = Record(status, before.text + text if before else text)
    return records


def _unreadable(name: str, reason: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"cannot be examined ({reason})",
        hint="its login shell must run `sh -s` and print nothing of its own",
        where=name,
    )

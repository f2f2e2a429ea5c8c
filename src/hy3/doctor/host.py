"""``Host``: what is known of one machine, gathered by one script that runs here or through ssh.

The script (gather.sh) is the fixed list of everything that is ever read. Checks see its records
only, so a remote machine, this one, and a folder that stands for one in a test are all alike.
"""

from __future__ import annotations

import base64
import binascii
import re
import shlex
import subprocess
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path

from hy3.doctor.check import CannotTell
from hy3.doctor.process import Process, parse_processes
from hy3.errors import EnvironmentFault, InputError

_TIMEOUT_S = 120
# BatchMode: a question for a password would wait for ever.
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@%-]*")


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
    node: str | None = field(default=None)  # where ssh reaches it; None is this machine

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
    records = _run(("sh", "-s"), "here", str(root) if root else "")
    return Host("here", records, nodes)


def gather_remote(node: str, nodes: int = 1) -> Host:
    """A machine that ssh reaches without asking; one connection.

    Raises:
        EnvironmentFault: it cannot be reached, or is no machine that the script runs on.
    """
    return Host(node, _run((*_SSH, "--", node, "sh", "-s"), node, ""), nodes, node)


def parse_nodes(text: str) -> tuple[str, ...]:
    """``a,b`` as typed; ``localhost`` is this machine.

    Raises:
        InputError: a name that ssh could take for something else, or one that comes twice.
    """
    nodes = tuple(part.strip() for part in text.split(","))
    for node in nodes:
        if not _NODE.fullmatch(node):
            raise InputError(
                f"{node!r} is no name of a machine",
                hint="name machines as ssh knows them, as --nodes spark1,spark2",
                where="--nodes",
            )
    if len(set(nodes)) < len(nodes):
        raise InputError("a machine comes twice", hint="name each once", where="--nodes")
    return nodes


def command_on(host: Host, command: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments that run ``command`` on the host, with a terminal for sudo's question."""
    if host.node is None:
        return command
    # ssh hands one string to the shell at the other end.
    return ("ssh", "-t", "--", host.node, shlex.join(command))


def command_through(host: Host, command: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments that run ``command`` on the host without a terminal; stdin goes along."""
    if host.node is None:
        return command
    return (*_SSH, "--", host.node, shlex.join(command))


def _run(prefix: tuple[str, ...], name: str, root: str) -> dict[str, Record]:
    script = resources.files("hy3.doctor").joinpath("gather.sh").read_text(encoding="utf-8")
    script = f"R={shlex.quote(root)}\n{script}"
    try:
        done = subprocess.run(
            prefix, input=script.encode(), capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise _unreachable(name, str(error)) from error
    lines = done.stdout.decode("ascii", "replace").splitlines()
    if not lines or lines[-1] != "end":
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _unreachable(name, reason[-1] if reason else "its answer is cut off")
    return _parse(lines[:-1], name)


def _parse(lines: list[str], name: str) -> dict[str, Record]:
    """Records of one name are joined: packages come from several folders."""
    records: dict[str, Record] = {}
    for line in lines:
        try:
            key, status, content = line.split("\t")
            text = base64.b64decode(content, validate=True).decode("utf-8", "replace")
        except (ValueError, binascii.Error) as error:
            raise _unreachable(name, "its answer is garbled") from error
        before = records.get(key)
        records[key] = Record(status, before.text + text if before else text)
    return records


def _unreachable(name: str, reason: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"cannot be examined ({reason})",
        hint="set up ssh with a key, so that `ssh NODE true` asks for nothing",
        where=name,
    )

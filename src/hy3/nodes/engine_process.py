"""Which processes belong to an inference engine, told by their command lines."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hy3.nodes.node import Node

# Extended regular expressions of POSIX: doctor/gather.sh gives ENGINE to grep. They read words
# with one space between them. A program is told by its last name, a worker by its title.
_SERVER = (
    r"(^|[ /])((vllm|sglang|hy3) serve|llama-server)( |$)"
    r"|vllm[./]entrypoints|sglang[./]launch_server"
)
_WORKER = r"(^|[ /])(VLLM|sglang|ray)::|EngineCore|RayWorkerProc"
ENGINE = f"{_SERVER}|{_WORKER}"
_LEADER = f"{_SERVER}|raylet|APIServer"
# One line for each process, the words of its command line with spaces between them.
_LIST = 'grep -ah "" "$0"/[0-9]*/cmdline 2>/dev/null | tr "\\000" " "'


def is_engine(command: str) -> bool:
    """Whether a command line, or a process's title, is an engine's."""
    return bool(re.search(ENGINE, command))


def leads(command: str) -> bool:
    """Whether it is one of those that start an engine's others and clean up after them."""
    return bool(re.search(_LEADER, command))


def engines_among(commands: Iterable[str]) -> list[str]:
    """Those of engines."""
    return [command.strip() for command in commands if is_engine(command)]


def engines_on(node: Node, proc: str = "/proc") -> list[str]:
    """Command lines of engines that run on a machine.

    Raises:
        EnvironmentFault: it cannot be reached.
    """
    return engines_among(node.run("sh", "-c", _LIST, proc).splitlines())

"""Whether an engine is serving on a machine: a copy would take the page cache from under it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hy3.nodes.node import Node

# Programs by their command line: the engines and their workers.
_ENGINE = re.compile(
    r"(^|/)(vllm|hy3)\0serve\0|vllm\.entrypoints|sglang[./]launch_server|VLLM::|sglang::"
)
# Prints every command line of the node, one a line, its zero bytes as \\001.
_LIST = "for f in /proc/[0-9]*/cmdline; do tr '\\000\\n' '\\001 ' <\"$f\" 2>/dev/null; echo; done"


def serving_here(proc: Path = Path("/proc")) -> list[str]:
    """Command lines of engines that run on this machine."""
    lines = []
    for path in proc.glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().decode(errors="replace"))
        except OSError:  # it has ended meanwhile
            continue
    return engines_among(lines)


def serving_on(node: Node) -> list[str]:
    """Command lines of engines that run on a node."""
    listed = node.run("sh", "-c", _LIST)
    return engines_among(line.replace("\x01", "\0") for line in listed.splitlines())


def engines_among(command_lines: Iterable[str]) -> list[str]:
    """Of command lines with zero bytes between their words, those of engines, readable."""
    return [line.replace("\0", " ").strip() for line in command_lines if _ENGINE.search(line)]

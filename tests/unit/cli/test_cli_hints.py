"""Every option that an error, its hint or its place names is one that ``hy3`` takes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import typer

from hy3.cli.app import app

SOURCE = Path(__file__).resolve().parents[3] / "src" / "hy3"
FOREIGN = {"--local-dir"}  # of hf download


def named_options(text: str) -> Iterator[tuple[int, str]]:
    """Line and option, of all that is said in a call with a ``hint``."""
    for call in ast.walk(ast.parse(text)):
        if not isinstance(call, ast.Call) or "hint" not in {each.arg for each in call.keywords}:
            continue
        for node in ast.walk(call):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", node.value):
                    yield node.lineno, option


def known_options() -> set[str]:
    group = typer.main.get_command(app)
    return {
        option
        for command in [group, *group.commands.values()]
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help"}


def test_hints_name_options_that_exist() -> None:
    known, found = known_options() | FOREIGN, 0
    for path in SOURCE.rglob("*.py"):
        for line, option in named_options(path.read_text(encoding="utf-8")):
            found += 1
            assert option in known, f"{path.relative_to(SOURCE)}:{line} names {option}"
    assert found > 50


def test_an_option_that_does_not_exist_is_seen() -> None:
    text = 'raise InputError("no", hint=f"at most {n}, or give --exceptance for each")'
    assert list(named_options(text)) == [(1, "--exceptance")]
    assert "--exceptance" not in known_options() and "--acceptance" in known_options()

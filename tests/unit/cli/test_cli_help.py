"""Helps as they are read in 80 columns: whole sentences, whole names, and where names are from."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from hy3.cli.app import VERBS, app
from hy3.hardware.device import load_devices
from hy3.quantize.recipe import recipe_names


def help_of(*verb: str) -> str:
    found = CliRunner().invoke(
        app, [*verb, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    )
    assert found.exit_code == 0
    return found.stdout


def test_every_command_is_described_in_one_whole_line() -> None:
    listed = help_of().partition("Commands:\n")[2].splitlines()
    described = dict(re.fullmatch(r"  (\w+) +(\S.*)", line).groups() for line in listed if line)
    assert list(described) == list(VERBS)
    for verb, line in described.items():
        assert line.endswith(".") and not line.endswith("..."), line
        # The verb's own help begins with the same sentence.
        assert f"\n  {line}\n" in help_of(verb)


@pytest.mark.parametrize("verb", VERBS)
def test_no_name_is_broken_over_two_lines(verb: str) -> None:
    lines = help_of(verb).splitlines()
    assert not [line for line in lines if line.endswith("-")]
    assert max(map(len, lines)) <= 80


def test_devices_and_recipes_are_named() -> None:
    listed = re.search(r"Devices: ([^.]+)\.", " ".join(help_of("plan").split()))
    assert listed and set(listed[1].split(", ")) == load_devices().keys()
    assert set(recipe_names()) <= set(re.split(r"[\s,]+", help_of("quantize")))

"""docs/doctor.md says what the checks are, and every answer that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tools import doctor_tables

ROOT = Path(__file__).resolve().parents[2]
URL = re.compile(r"https://[\w./#-]+")
IDS = [check.id for _, check in doctor_tables.all_checks()]
PROBLEMS = doctor_tables.problems()


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def exists(name: str) -> bool:
    """Whether a check or a test of that name is there."""
    path, _, function = name.partition("::")
    if not function:
        return name in IDS
    return (ROOT / path).is_file() and function in functions_of(ROOT / path)


def test_the_tables_are_those_of_the_code():
    told = "run python tools/doctor_tables.py"
    assert doctor_tables.PAGE.read_text(encoding="utf-8") == doctor_tables.page(), told


def test_ids_are_unique_and_speak():
    assert len(set(IDS)) == len(IDS)
    assert not [name for name in IDS if name != name.lower() or " " in name]


def test_every_check_names_its_report():
    sources = {check.id: check.source for _, check in doctor_tables.all_checks()}
    assert not [name for name, source in sources.items() if not URL.fullmatch(source)]


# Those of any model that are to be seen before a launch.
OF_EACH = {"B": (1, 4, 15, 16), "C": (*range(1, 9), 11, 13), "D": (3, 8, 15), "E": (12, 13, 17, 18)}
PREFLIGHT = [f"{letter}{number}" for letter, numbers in OF_EACH.items() for number in numbers]


def test_every_problem_is_answered_once():
    assert list(PROBLEMS) == [f"A{number}" for number in range(1, 36)] + PREFLIGHT


@pytest.mark.parametrize("problem", PROBLEMS)
def test_what_is_named_exists(problem):
    _, kind, names, remark = PROBLEMS[problem]
    assert kind in ("check", "rule", "default", "test") and names
    assert kind == "check" or problem not in PREFLIGHT
    assert kind == "check" or remark, "what no check can see has a sentence on what answers it"
    assert not [name for name in names if not exists(name)]
    assert kind != "check" or any("::" not in name for name in names)


def test_a_name_that_is_not_there_is_noticed():
    assert not exists("no-such-check")
    assert not exists("tests/golden/test_doctor_docs.py::test_nothing")
    assert exists("tests/golden/test_doctor_docs.py::test_a_name_that_is_not_there_is_noticed")

"""docs/planning.md says what ``hy3 plan`` answers today and what the result files hold."""

from __future__ import annotations

import re

import pytest
from tools import plan_tables


@pytest.fixture(scope="module")
def text() -> str:
    return plan_tables.PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def written(text: str) -> str:
    return plan_tables.page(text)


def test_the_tables_are_what_the_code_answers(text: str, written: str) -> None:
    assert text == written, "run python tools/plan_tables.py"
    for table in plan_tables.TABLES:
        assert len(list(re.finditer(f"<!-- {table}: (begin|end) -->", text))) == 2, table


def test_the_picture_is_the_first_cases_memory() -> None:
    assert plan_tables.PICTURE.read_bytes() == plan_tables.picture(), "run tools/plan_tables.py"


def test_the_prose_on_steps_holds() -> None:
    found = plan_tables.load("plan_kv_tokens_h200")["cases"]
    others = [each for each in found if "step_ms" in each][1:]
    steps = [step for each in others for step in each["step_ms"].values()]
    assert (len(steps), sum(step["inside"] for step in steps)) == (10, 8)
    faster = [1 - step["measured"] / step["planned"] for step in steps]
    assert (round(min(faster), 2), round(max(faster), 2)) == (0.02, 0.27)
    outside = [
        (each["case"]["mode"], each["case"]["drafts"], streams)
        for each in others
        for streams, step in each["step_ms"].items()
        if not step["inside"]
    ]
    assert outside == [("compiled", 0, "1"), ("graphs", 2, "1")]


def test_a_stale_figure_is_written_anew(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One digit of each table but the cases, which take seconds, is set wrong."""
    tables = {name: table for name, table in plan_tables.TABLES.items() if name != "cases"}
    monkeypatch.setattr(plan_tables, "TABLES", tables)
    for name in tables:
        place = written.index(f"<!-- {name}: begin -->")
        digit = re.compile(r"\d(?= (%|ms|s) \|)").search(written, place)
        assert digit is not None
        wrong = (int(digit[0]) + 1) % 10
        stale = f"{written[: digit.start()]}{wrong}{written[digit.end() :]}"
        assert plan_tables.page(stale) == written


def test_a_wrong_pair_without_a_word_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_tables, "LACKS", {})
    with pytest.raises(KeyError):
        list(plan_tables.wrong_pairs())


def test_no_case_is_a_failed_command() -> None:
    with pytest.raises(SystemExit):
        plan_tables.answer(("nowhere",), "--hardware gb10 --nothing")

"""What hy3-tiny promises: the recorded figures, and a short cut of their measurement."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
from tools.tiny.evaluate import arithmetic, measure, tool_calls
from tools.tiny.generation import (
    calls_are_valid,
    expected_calls,
    held_out_dialogues,
    last_number,
)
from tools.tiny.rendering import FOLDER

from hy3.chat.events import ParsedMessage, ToolCall
from hy3.model.decoder import load_model

RECORD = Path(__file__).parents[3] / "benchmarks" / "results" / "tiny_quality.json"
FIGURES = json.loads(RECORD.read_text(encoding="utf-8"))["checkpoints"]


@pytest.mark.parametrize("label", ["bf16", "nvfp4"])
def test_recorded_figures_hold_the_promises(label: str) -> None:
    found = FIGURES[label]
    assert found["arithmetic_high"]["items"] == 500
    assert found["arithmetic_high"]["exact"] >= 0.90
    assert found["tool_calls"]["schema_valid"] >= 0.95
    first, second = found["drafts"]["accepted"]
    assert found["drafts"]["dialogues"] == 200
    assert second < first and first >= 0.60
    assert found["heldout_text"]["perplexity"] < found["uniform_perplexity"] / 100


@pytest.mark.parametrize("label", ["bf16", "nvfp4"])
def test_recorded_resets_raise_a_loss(label: str) -> None:
    resets = FIGURES[label]["loss_rise_when_reset"]
    assert len(resets) == 8
    for name, rises in resets.items():
        assert any(rise > 3 * error for rise, error in rises.values()), name


def test_a_few_held_out_items_come_out_right() -> None:
    model = load_model(FOLDER)
    assert arithmetic(FOLDER, model, 8)["exact"] >= 7 / 8
    assert tool_calls(FOLDER, model, 4)["schema_valid"] == 1.0


@pytest.mark.long
def test_figures_can_be_measured_again() -> None:
    found = measure(FOLDER, Namespace(problems=500, dialogues=200))
    recorded = FIGURES["bf16"]
    for path in (("arithmetic_high", "exact"), ("tool_calls", "schema_valid")):
        assert found[path[0]][path[1]] == pytest.approx(recorded[path[0]][path[1]], abs=0.02)
    assert found["drafts"]["accepted"] == pytest.approx(recorded["drafts"]["accepted"], abs=0.03)


def test_judging_catches_wrong_answers() -> None:
    assert last_number("3 + 4 = 7") == last_number("It is 7.") == "7"
    assert last_number(None) == last_number("") == ""
    dialogue = held_out_dialogues(1, seed=7, calls_only=True)[0]
    name, arguments = expected_calls(dialogue)[-1]
    assert arguments, "the missing ones below must be required"
    good = ToolCall("a", name, json.dumps(arguments))
    assert calls_are_valid(ParsedMessage(None, None, (good,)), dialogue)
    for call in (
        ToolCall("a", "unknown", good.arguments),
        ToolCall("a", good.name, '{"city": 1, "a": "x"}'),
        ToolCall("a", good.name, "{}"),
    ):
        assert not calls_are_valid(ParsedMessage(None, None, (call,)), dialogue)
    assert not calls_are_valid(ParsedMessage(None, "no", ()), dialogue)

"""The decision table of docs/chat.md, row by row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hy3.chat.markers import Markers
from hy3.chat.stream import ChatStream
from hy3.chat.template import _EFFORTS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "chat.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\S.*)` \| (.*) \|$", PAGE.partition("## What becomes of")[2], re.M)
TOOLS = [
    {"function": {"name": "time"}},
    {
        "function": {
            "name": "look",
            "parameters": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        }
    },
]


def outcome(text: str, suffix: str) -> str:
    """A completion's message in the words of the page."""
    stream = ChatStream(Markers(suffix), TOOLS, reasoning_open=text.startswith("<think>"))
    whole = text.replace("⏎", "\n").removesuffix("✂")
    stream.feed(re.sub(r"(</?[a-z_]+)>", rf"\1{suffix}>", whole))
    stream.finish("length" if text.endswith("✂") else "stop")
    message = stream.message()
    parts = [
        f'{name} "{said}"'
        for name, said in (("reasoning", message.reasoning), ("content", message.content))
        if said is not None
    ]
    parts += [f"{call.name} {call.arguments}" for call in message.tool_calls]
    return (", ".join(parts) or "nothing").replace(suffix, "")


@pytest.mark.parametrize("suffix", ["", ":opensource"])
@pytest.mark.parametrize(("text", "said"), ROWS)
def test_row(text: str, said: str, suffix: str) -> None:
    assert outcome(text, suffix) == said


def test_no_row_is_passed_over() -> None:
    section = PAGE.partition("## What becomes of")[2].partition("## ")[0]
    assert len(ROWS) == section.count("\n| `") >= 25


def test_efforts() -> None:
    table = PAGE.partition("| request | template |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*`) \| `(\w+)`", table, re.M)
    said = {name: effort for names, effort in rows for name in re.findall(r"`(\w+)`", names)}
    assert said == _EFFORTS

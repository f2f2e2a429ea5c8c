"""The parser against the golden corpus: whole, character by character, and cut in two anywhere."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import pytest

from golden.chat_streams import CASES, CUT, LOOSE, PLAIN, SPELLING, TOOLS, Case
from hy3.chat.events import (
    ContentDelta,
    Event,
    ParsedMessage,
    ReasoningDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallStart,
    coalesce,
)
from hy3.chat.markers import Markers
from hy3.chat.stream import ChatStream, new_call_id

SUFFIXED = ":opensource"
PARAMETERS = [
    pytest.param(case, suffix, id=f"{case.name} [{suffix}]")
    for case, suffix in [
        *((case, suffix) for case in CASES for suffix in (SUFFIXED, "")),
        *((case, SUFFIXED) for case in SPELLING),
    ]
]


def spell(text: str | None, suffix: str) -> str | None:
    """Put the spellings in place of their signs; a bare ``!`` or ``?`` in prose is kept."""
    if text is None:
        return None
    return text.replace("~", suffix).replace("!>", ">").replace("?>", ":foreign>")


def open_stream(case: Case, suffix: str) -> ChatStream:
    numbers = itertools.count()
    return ChatStream(
        Markers(suffix),
        TOOLS if case.tools else None,
        reasoning_open=case.open,
        make_id=lambda: f"id{next(numbers)}",
    )


def read(
    case: Case, suffix: str, chunks: Iterable[str]
) -> tuple[list[Event], ParsedMessage, str, int]:
    stream = open_stream(case, suffix)
    events: list[Event] = []
    for chunk in chunks:
        events += stream.feed(chunk)
    events += stream.finish("length" if case.cut else "stop")
    return list(coalesce(events)), stream.message(), stream.finish_reason(), stream.malformed


def expected_message(case: Case, suffix: str) -> ParsedMessage:
    calls = tuple(
        ToolCall(f"id{i}", name, spell(arguments, suffix) or "")
        for i, (name, arguments) in enumerate(case.calls)
    )
    return ParsedMessage(spell(case.reasoning, suffix), spell(case.content, suffix), calls)


@pytest.mark.parametrize(("case", "suffix"), PARAMETERS)
def test_corpus(case: Case, suffix: str) -> None:
    text = spell(case.text, suffix)
    assert text is not None
    events, message, finish, malformed = read(case, suffix, [text])
    assert message == expected_message(case, suffix)
    assert finish == (case.finish or ("tool_calls" if case.calls else "stop"))
    assert malformed == case.malformed
    check_events(events, message)
    if len(text) < 5000:
        assert read(case, suffix, text) == (events, message, finish, malformed)
    step = max(1, len(text) // 60)
    for cut in range(1, len(text), step):
        halves = [text[:cut], text[cut:]]
        assert read(case, suffix, halves) == (events, message, finish, malformed), cut


def check_events(events: list[Event], message: ParsedMessage) -> None:
    """The events tell the same as the message, and the arguments are strict JSON objects."""
    assert "".join(e.text for e in events if isinstance(e, ContentDelta)) == (message.content or "")
    reasoning = "".join(e.text for e in events if isinstance(e, ReasoningDelta))
    assert reasoning == (message.reasoning or "")
    starts = [e for e in events if isinstance(e, ToolCallStart)]
    assert [(e.index, e.id, e.name) for e in starts] == [
        (i, call.id, call.name) for i, call in enumerate(message.tool_calls)
    ]
    for i, call in enumerate(message.tool_calls):
        joined = "".join(
            e.fragment for e in events if isinstance(e, ToolCallArguments) and e.index == i
        )
        assert joined == call.arguments
        joined.encode()  # nothing that UTF-8 cannot hold
        value = json.loads(joined, parse_constant=lambda name: pytest.fail(name))
        assert isinstance(value, dict)
        if "\\ud8" not in joined:
            assert json.dumps(value, ensure_ascii=False) == joined


def test_corpus_is_large_and_named_apart() -> None:
    names = [case.name for case in CASES + SPELLING]
    assert len(names) == len(set(names)) >= 150
    assert PLAIN and CUT and LOOSE


def test_a_string_is_streamed_while_it_is_open() -> None:
    stream = ChatStream(Markers(), TOOLS, False, make_id=lambda: "c1")
    stream.feed("<tool_calls>\n<tool_call>look")
    assert stream.feed("<tool_sep>\n") == [ToolCallStart(0, "c1", "look")]
    stream.feed("<arg_key>city</arg_key>\n<arg_value>")
    assert stream.feed('Ro"') == [ToolCallArguments(0, 'Ro\\"')]
    assert stream.feed("me</arg_value>") == [ToolCallArguments(0, "me")]
    assert stream.feed("\n</tool_call>") == [ToolCallArguments(0, '"}')]
    assert stream.feed("\n</tool_calls>") == []


def test_numbers_wait_for_their_end() -> None:
    stream = ChatStream(Markers(), TOOLS, False)
    stream.feed("<tool_call>look<tool_sep>")
    assert stream.feed("<arg_key>days</arg_key><arg_value>12") == []
    assert stream.feed("</arg_value>") == []
    assert stream.feed("<arg_key>") == [ToolCallArguments(0, '{"days": 12')]


def test_content_is_not_held_back_by_a_mention() -> None:
    stream = ChatStream(Markers(), TOOLS, False)
    assert stream.feed("Use <tool_call> like") == [ContentDelta("Use <tool_call> like")]


def test_call_ids_differ() -> None:
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(id.startswith("call_") for id in ids)

"""The parser on random completions: chunking never matters, arguments are always JSON, calls that
follow the format come back exactly, and the work grows with the length only."""

from __future__ import annotations

import codecs
import itertools
import json
import sys
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from golden.chat_streams import TOOLS
from hy3.chat.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
    coalesce,
)
from hy3.chat.lexer import THINK
from hy3.chat.lexer import TOOLS as TOOL_MARKERS
from hy3.chat.markers import Markers
from hy3.chat.stream import ChatStream

SUFFIX = ":é"  # not ASCII, so that bytes can be cut inside of a marker
MARKER = st.sampled_from(
    [f"<{name}{suffix}>" for name in THINK + TOOL_MARKERS for suffix in (SUFFIX, "")]
)
SHORT = st.sampled_from(
    ["\n", " ", "a", "look", "time", "city", "days", "tags", "1", "[1]", "{", "}", '{"a": "', '"}',
     "\\", "<", "</", "<tool_c", "</arg_value", "<tool_call:x>", "東", "🗼", "\x00"]
)  # fmt: skip
WHOLE = st.sampled_from(
    [
        f"<tool_call{s}>look<tool_sep{s}>\n<arg_key{s}>{k}</arg_key{s}>\n<arg_value{s}>"
        for s in (SUFFIX, "")
        for k in ("city", "days", "either")
    ]
)
SOUP = st.lists(MARKER | SHORT | WHOLE, max_size=25).map("".join)


def new_stream(open_: bool = False, tools: bool = True) -> ChatStream:
    numbers = itertools.count()
    return ChatStream(
        Markers(SUFFIX), TOOLS if tools else None, open_, make_id=lambda: f"id{next(numbers)}"
    )


def outcome(stream: ChatStream, chunks: list[str], reason: str) -> tuple[object, ...]:
    events: list[Event] = []
    for chunk in chunks:
        events += stream.feed(chunk)
    events += stream.finish(reason)  # type: ignore[arg-type]
    events = list(coalesce(events))
    return events, stream.message(), stream.finish_reason(), stream.malformed


def byte_chunks(text: str, cuts: list[int]) -> list[str]:
    """Cut the UTF-8 bytes anywhere and decode each piece as a server would."""
    data = text.encode()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [decoder.decode(data[a:b]) for a, b in itertools.pairwise(edges)]


def check_invariance(text: str, open_: bool, tools: bool, reason: str, cuts: list[int]) -> None:
    whole = outcome(new_stream(open_, tools), [text], reason)
    assert outcome(new_stream(open_, tools), list(text), reason) == whole
    assert outcome(new_stream(open_, tools), byte_chunks(text, cuts), reason) == whole
    bytewise = list(range(len(text.encode())))
    assert outcome(new_stream(open_, tools), byte_chunks(text, bytewise), reason) == whole


@settings(max_examples=400, deadline=None)
@given(
    text=SOUP,
    open_=st.booleans(),
    tools=st.booleans(),
    reason=st.sampled_from(["stop", "length"]),
    cuts=st.lists(st.integers(0, 10_000), max_size=6),
)
def test_chunks_do_not_matter(
    text: str, open_: bool, tools: bool, reason: str, cuts: list[int]
) -> None:
    check_invariance(text, open_, tools, reason, cuts)


@pytest.mark.long
@settings(max_examples=5_000, deadline=None)
@given(
    text=SOUP,
    open_=st.booleans(),
    reason=st.sampled_from(["stop", "length"]),
    cuts=st.lists(st.integers(0, 10_000), max_size=6),
)
def test_chunks_do_not_matter_long(text: str, open_: bool, reason: str, cuts: list[int]) -> None:
    check_invariance(text, open_, True, reason, cuts)


def test_a_lexer_that_holds_nothing_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from hy3.chat import lexer

    sound = lexer.MarkerLexer.__init__

    def forgetful(self: lexer.MarkerLexer, *arguments: Any, **named: Any) -> None:
        sound(self, *arguments, **named)
        self._prefixes = set()

    monkeypatch.setattr(lexer.MarkerLexer, "__init__", forgetful)
    with pytest.raises(AssertionError):
        check_invariance("a<think>b</think>", False, True, "stop", [])


@settings(max_examples=300, deadline=None)
@given(text=SOUP, open_=st.booleans(), reason=st.sampled_from(["stop", "length"]))
@example("<tool_calls><tool_call>look<tool_sep>{", False, "length")
def test_events_message_and_json_agree(text: str, open_: bool, reason: str) -> None:
    events, message, finish, malformed = outcome(new_stream(open_), [text], reason)
    content = "".join(e.text for e in events if isinstance(e, ContentDelta))
    reasoning = "".join(e.text for e in events if isinstance(e, ReasoningDelta))
    assert (content or None, reasoning or None) == (message.content, message.reasoning)
    assert finish == (
        "length" if reason == "length" else "tool_calls" if message.tool_calls else "stop"
    )
    assert 0 <= malformed <= text.count("<tool_call")
    names = [e.name for e in events if isinstance(e, ToolCallStart)]
    assert names == [call.name for call in message.tool_calls]
    for i, call in enumerate(message.tool_calls):
        assert call.name.strip() == call.name != ""
        fragments = [e for e in events if isinstance(e, ToolCallArguments) and e.index == i]
        assert "".join(e.fragment for e in fragments) == call.arguments
        value = json.loads(call.arguments)
        assert json.dumps(value, ensure_ascii=False) == call.arguments


@settings(max_examples=300, deadline=None)
@given(text=st.lists(SHORT, max_size=12).map("".join), open_=st.booleans())
def test_text_without_markers_is_verbatim(text: str, open_: bool) -> None:
    _, message, _, _ = outcome(new_stream(open_), [text], "stop")
    assert (message.reasoning if open_ else message.content) == (text or None)


text_value = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner | text_value, max_size=3)
        | st.dictionaries(text_value, inner | text_value, max_size=3)
    ),
    max_leaves=5,
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "city": text_value,
        "days": st.integers(),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "exact": st.booleans(),
        "tags": st.lists(json_value, max_size=3),
        "options": st.dictionaries(text_value, json_value, max_size=3),
    },
)


@settings(max_examples=300, deadline=None)
@given(
    calls=st.lists(arguments, min_size=1, max_size=3),
    content=text_value.filter(lambda text: not text or text.strip()),
    reasoning=text_value,
)
def test_calls_that_follow_the_format_come_back(
    calls: list[dict[str, Any]], content: str, reasoning: str
) -> None:
    group = []
    for values in calls:
        pairs = []
        for key, value in values.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            pairs.append(
                f"<arg_key{SUFFIX}>{key}</arg_key{SUFFIX}>\n"
                f"<arg_value{SUFFIX}>{text}</arg_value{SUFFIX}>\n"
            )
        group.append(
            f"<tool_call{SUFFIX}>look<tool_sep{SUFFIX}>\n{''.join(pairs)}</tool_call{SUFFIX}>\n"
        )
    text = (
        f"{reasoning}</think{SUFFIX}>{content}"
        f"<tool_calls{SUFFIX}>\n{''.join(group)}</tool_calls{SUFFIX}>"
    )
    _, message, finish, malformed = outcome(new_stream(True), [text], "stop")
    assert [json.loads(call.arguments) for call in message.tool_calls] == calls
    assert [call.arguments for call in message.tool_calls] == [
        json.dumps(values, ensure_ascii=False) for values in calls
    ]
    assert (message.reasoning, message.content) == (reasoning or None, content or None)
    assert (finish, malformed) == ("tool_calls", 0)


HEAD = "<tool_calls><tool_call>look<tool_sep>"
OPEN_STRING = f"{HEAD}<arg_key>city</arg_key><arg_value>"
# Each is a beginning and a part to repeat; the part is fed one character at a time.
REPEATED = {
    "string value": (OPEN_STRING, "x"),
    "value ends as data": (OPEN_STRING, "</arg_value>x"),
    "value ends in a row": (OPEN_STRING, "</arg_value>"),
    "call ends as data": (OPEN_STRING, "</tool_call>"),
    "whitespace after a value": (f"{OPEN_STRING}</arg_value>", " "),
    "calls with open values": ("<tool_calls>", "<tool_call>look<tool_sep><arg_key>city</arg_key>"
                               "<arg_value>a</tool_call>"),
    "object": (f"{HEAD}", '{"a":"\\"'),
    "objects with open strings": ("<tool_calls>", '<tool_call>look<tool_sep>{"</tool_call>'),
    "mentions of a call": ("", "<tool_call>x"),
    "space after a loose call": ("<tool_call>look", " "),
    "long name": ("<tool_calls><tool_call>", "n"),
    "long key": (f"{HEAD}<arg_key>", "k"),
    "long number": (f"{HEAD}<arg_key>days</arg_key><arg_value>", "1"),
    "blank content": ("", " "),
    "beginnings of markers": ("", "<"),
    "reasoning": ("<think>", "<tool_call>"),
}  # fmt: skip


def count_steps(start: str, part: str, characters: int) -> int:
    """Python and C calls that reading takes, a measure of work that no other load disturbs."""
    stream = new_stream()
    text = part * (characters // len(part))
    steps = 0

    def count(frame: object, kind: str, argument: object) -> None:
        nonlocal steps
        steps += kind in ("call", "c_call")

    sys.setprofile(count)
    try:
        stream.feed(start)
        for character in text:
            stream.feed(character)
        stream.finish("length")
    finally:
        sys.setprofile(None)
    return steps


@pytest.mark.parametrize("name", REPEATED)
def test_work_grows_with_the_length_only(name: str) -> None:
    start, part = REPEATED[name]
    short, long = count_steps(start, part, 1500), count_steps(start, part, 6000)
    assert long <= 4.4 * short


def test_growing_work_is_caught() -> None:
    def quadratic(characters: int) -> int:
        return characters * characters

    assert quadratic(6000) > 4.4 * quadratic(1500)


def read_by_character(name: str, characters: int) -> int:
    """What calls do not show, copies of all that came before, would take hours here."""
    start, part = REPEATED[name]
    stream = new_stream()
    stream.feed(start)
    for character in part * (characters // len(part)):
        stream.feed(character)
    stream.finish("stop")
    message = stream.message()
    return len(message.content or "") + sum(len(call.arguments) for call in message.tool_calls)


@pytest.mark.parametrize("name", ["string value", "call ends as data", "calls with open values"])
def test_long_values_character_by_character(name: str) -> None:
    assert read_by_character(name, 1 << 17) > 20_000


@pytest.mark.long
@pytest.mark.parametrize("name", REPEATED)
def test_a_megabyte_character_by_character(name: str) -> None:
    read_by_character(name, 1 << 20)

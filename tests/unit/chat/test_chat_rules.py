"""The decisions where engines disagree, one test to a rule of docs/chat.md."""

from __future__ import annotations

from typing import Any

from golden.chat_streams import TOOLS
from hy3.chat.markers import Markers
from hy3.chat.stream import ChatStream

S = ":s"
OPEN = f"<tool_calls{S}><tool_call{S}>look<tool_sep{S}>"
CLOSE = f"</tool_call{S}></tool_calls{S}>"


def pair(key: str, value: str) -> str:
    return f"<arg_key{S}>{key}</arg_key{S}><arg_value{S}>{value}</arg_value{S}>"


def read(
    text: str, reason: Any = "stop", tools: Any = TOOLS, reasoning_open: bool = False
) -> tuple[str | None, str | None, list[tuple[str, str]], str]:
    stream = ChatStream(Markers(S), tools, reasoning_open)
    stream.feed(text)
    stream.finish(reason)
    message = stream.message()
    calls = [(call.name, call.arguments) for call in message.tool_calls]
    return message.reasoning, message.content, calls, stream.finish_reason()


def arguments(inside: str, reason: Any = "stop") -> list[str]:
    return [text for _, text in read(OPEN + inside, reason)[2]]


def test_rule_1_arguments_are_json_or_the_text_itself() -> None:
    assert arguments(pair("tags", '["é", 1e2]') + CLOSE) == ['{"tags": ["é", 100.0]}']
    for text in ("NaN", "1e999", "{1}", "(1, 2)", "...", "[" * 101 + "]" * 101):
        assert arguments(pair("tags", text) + CLOSE) == [f'{{"tags": "{text}"}}']
    assert arguments(pair("city", "\udc00") + CLOSE) == ['{"city": "\\udc00"}']


def test_rule_2_one_spelling_to_a_group_and_loose_calls_by_known_names() -> None:
    bare = (OPEN + pair("city", "!") + CLOSE).replace(S, "").replace("!", f"</arg_value{S}>")
    assert arguments(pair("city", "</tool_call>") + CLOSE) == ['{"city": "</tool_call>"}']
    assert read(bare)[2] == [("look", f'{{"city": "</arg_value{S}>"}}')]
    assert read(f"<tool_call{S}>time<tool_sep{S}></tool_call{S}>")[2] == [("time", "{}")]
    unknown = f"<tool_call{S}>fly<tool_sep{S}></tool_call{S}>"
    assert read(unknown) == (None, unknown, [], "stop")
    foreign = OPEN.replace(S, ":other")
    assert read(foreign) == (None, foreign, [], "stop")
    assert read(OPEN + CLOSE, tools=None) == (None, OPEN + CLOSE, [], "stop")


def test_rule_3_a_value_ends_where_something_may_follow_it() -> None:
    end = f"</arg_value{S}>"
    assert arguments(pair("city", f"a{end}b<tool_sep{S}>") + CLOSE) == [
        f'{{"city": "a{end}b<tool_sep{S}>"}}'
    ]
    assert arguments(pair("city", "a") + end + end + CLOSE) == ['{"city": "a"}']
    assert arguments(pair("city", f"a{CLOSE}b") + CLOSE) == [f'{{"city": "a{CLOSE}b"}}']
    assert arguments(pair("city", "a").removesuffix(end) + CLOSE) == ['{"city": "a"}']
    assert arguments(pair("days", "1").removesuffix(end) + CLOSE) == ["{}"]


def test_rule_4_what_is_missing_is_made_up_for() -> None:
    assert arguments(f"<arg_key{S}> city <arg_value{S}> a </arg_value{S}>{CLOSE}") == [
        '{"city": " a "}'
    ]
    assert arguments(f"<arg_key{S}>days</arg_key{S}>7</arg_value{S}>{CLOSE}") == ['{"days": 7}']
    assert arguments(f"<arg_key{S}>days</arg_key{S}>7{CLOSE}") == ["{}"]
    assert arguments(f"<tool_call{S}>time{CLOSE}") == ["{}", "{}"]
    assert arguments(f'{{"a": [1]}}{CLOSE}') == ['{"a": [1]}']
    assert arguments(f'{{"a": [1]{CLOSE}') == ["{}"]
    nameless = f"<tool_call{S}><tool_sep{S}></tool_call{S}>"
    assert read(f"<tool_calls{S}>{nameless}") == (None, nameless, [], "stop")


def test_rule_5_cut_by_length() -> None:
    started = f"<arg_key{S}>city</arg_key{S}><arg_value{S}>"
    assert arguments(pair("days", "1") + started + "Ro", "length") == ['{"days": 1, "city": "Ro"}']
    assert arguments(started, "length") == ['{"city": ""}']
    assert arguments(started.replace("city", "either") + "1", "length") == ["{}"]
    assert arguments(f"<arg_key{S}>city</arg_key{S}>", "length") == ["{}"]
    named = f"<tool_calls{S}><tool_call{S}>time"
    assert read(named, "length") == (None, None, [], "length")
    assert read(named, "stop") == (None, None, [("time", "{}")], "tool_calls")
    assert read(named + "less", "stop") == (None, None, [], "stop")


def test_rule_6_text_is_verbatim_but_for_blanks_around_calls() -> None:
    group = OPEN + CLOSE
    assert read(f"\n{group} \n {group}\n")[1] is None
    assert read(f" a\n{group} b {group}\nc ")[1] == " a\n b \nc "
    assert read(f"</think{S}>", reasoning_open=True)[:2] == (None, None)
    assert len(read(group + group)[2]) == 2


def test_rule_7_think_markers() -> None:
    assert read(f"<think{S}>a</think{S}>b", reasoning_open=True)[:2] == ("a", "b")
    assert read(f"a<think{S}>b</think{S}>c</think{S}>d")[:2] == ("b", "acd")
    assert read(f"a<think{S}>b")[:2] == ("b", "a")
    assert read(f"<think{S}>{OPEN}{CLOSE}</think{S}>")[:3] == (OPEN + CLOSE, None, [])


def test_rule_8_finish_reasons_unknown_names_and_half_markers() -> None:
    assert read(OPEN + CLOSE, "length")[3] == "length"
    assert read(OPEN + CLOSE)[3] == "tool_calls"
    assert read("a<tool_call")[1::2] == ("a<tool_call", "stop")
    assert read((OPEN + CLOSE).replace("look", "fly"))[2] == [("fly", "{}")]
    stream = ChatStream(Markers(S), TOOLS, False)
    stream.feed(f"{OPEN}{CLOSE}{OPEN}junk{CLOSE}<tool_call{S}>time<tool_sep{S}></tool_call{S}>")
    stream.finish("stop")
    assert (len(stream.message().tool_calls), stream.malformed) == (3, 2)

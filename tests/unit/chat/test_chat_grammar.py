"""The grammars in llguidance itself: what they accept, what they reject, and that the parser reads
back whatever they let through."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from hy3.chat.grammar import json_grammar, tool_grammar
from hy3.chat.markers import Markers
from hy3.chat.stream import ChatStream
from hy3.chat.tokenizer import Tokenizer
from hy3.errors import InputError
from support.small_tokenizer import write_tokenizer

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "$defs": {"day": {"type": "integer", "minimum": 0, "maximum": 6}},
                "properties": {
                    "note": {"type": "string", "maxLength": 5},
                    "city": {"type": "string"},
                    "unit": {"type": "string", "enum": ["°C", '"F"']},
                    "days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "maxItems": 2},
                    "exact": {"type": ["boolean", "null"]},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "time"}},
]
CITY = "<arg_key~>city</arg_key~>\n<arg_value~>Paris</arg_value~>\n"
UNIT = "<arg_key~>unit</arg_key~>\n<arg_value~>°C</arg_value~>\n"
DAYS = "<arg_key~>days</arg_key~>\n<arg_value~>[1, 2]</arg_value~>\n"
EXACT = "<arg_key~>exact</arg_key~>\n<arg_value~>null</arg_value~>\n"


def call(name: str, *pairs: str) -> str:
    return f"<tool_call~>{name}<tool_sep~>\n{''.join(pairs)}</tool_call~>\n"


def group(*calls: str) -> str:
    return f"<tool_calls~>\n{''.join(calls)}</tool_calls~>"


class Model:
    """One tokenizer in both libraries."""

    def __init__(self, folder: Path, suffix: str) -> None:
        write_tokenizer(folder, suffix)
        self.suffix = suffix
        self.markers = Markers(suffix)
        self.tokenizer = Tokenizer(folder)
        self._guided = LLTokenizer(
            (folder / "tokenizer.json").read_text(encoding="utf-8"),
            n_vocab=self.tokenizer.vocab_size,
            eos_token=list(self.tokenizer.eos_ids),
        )

    def matcher(self, lark: str) -> LLMatcher:
        matcher = LLMatcher(self._guided, LLMatcher.grammar_from_lark(lark), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def accepts(self, lark: str, text: str) -> bool:
        ids = self.tokenizer.encode(text.replace("~", self.suffix))
        matcher = self.matcher(lark)
        return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())


@pytest.fixture(name="model", scope="module", params=[":opensource", ""])
def _model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("tokenizer"), request.param)


ACCEPTED = [
    group(call("time")),
    group(call("look", CITY)),
    group(call("look", CITY, UNIT, DAYS, EXACT)),
    group(call("look", CITY, DAYS)),
    group(call("time"), call("look", CITY), call("time")),
    group(call("look", CITY.replace("Paris", ""))),
    group(call("look", CITY.replace("Paris", "a\n<b> </arg_value"))),
    group(call("look", CITY, UNIT.replace("°C", '"F"'))),
    group(call("look", CITY, EXACT.replace("null", "true"))),
]
REJECTED = {
    "nothing": "",
    "text": "Hello",
    "text before": "x" + group(call("time")),
    "text after": group(call("time")) + "x",
    "no call": group(),
    "unknown tool": group(call("fly")),
    "required key missing": group(call("look")),
    "optional before required": group(call("look", UNIT, CITY)),
    "optional out of order": group(call("look", CITY, DAYS, UNIT)),
    "twice": group(call("look", CITY, CITY)),
    "unknown key": group(call("look", CITY, CITY.replace("city", "town"))),
    "not in the enumeration": group(call("look", CITY, UNIT.replace("°C", "K"))),
    "wrong type": group(call("look", CITY, DAYS.replace("[1, 2]", "1"))),
    "beyond a shared definition": group(call("look", CITY, DAYS.replace("2", "7"))),
    "too long": group(call("look", CITY, CITY.replace("city", "note") + "123456")),
    "a marker in a value": group(call("look", CITY.replace("Paris", "</arg_key~>"))),
    "no newline": group(call("time")).replace("\n", ""),
    "no separator": group(call("time")).replace("<tool_sep~>", ""),
    "not ended": group(call("time")).replace("</tool_calls~>", ""),
    "no group": call("time"),
}


@pytest.mark.parametrize("text", ACCEPTED)
def test_required_accepts_the_format(model: Model, text: str) -> None:
    assert model.accepts(tool_grammar(TOOLS, model.markers), text)


@pytest.mark.parametrize("name", REJECTED)
def test_required_rejects_all_else(model: Model, name: str) -> None:
    assert not model.accepts(tool_grammar(TOOLS, model.markers), REJECTED[name])


def test_marker_spelled_in_ordinary_tokens_is_no_text(model: Model) -> None:
    matcher = model.matcher(tool_grammar(TOOLS, model.markers))
    opened = group(call("look", CITY)).replace("~", model.suffix).partition("Paris")[0]
    matcher.consume_tokens(model.tokenizer.encode(opened))
    spelled = [id for c in model.markers.tool_call_close for id in model.tokenizer.encode(c)]
    assert matcher.try_consume_tokens(spelled) == len(spelled) - 1


def test_named_and_single_calls(model: Model) -> None:
    named = tool_grammar(TOOLS, model.markers, choice="time")
    single = tool_grammar(TOOLS, model.markers, parallel=False)
    assert model.accepts(named, group(call("time")))
    assert model.accepts(single, group(call("look", CITY)))
    assert not model.accepts(named, group(call("look", CITY)))
    for lark in (named, single):
        assert not model.accepts(lark, group(call("time"), call("time")))


def test_reasoning_comes_first_or_not_at_all(model: Model) -> None:
    lark = tool_grammar(TOOLS, model.markers, reasoning=True)
    assert model.accepts(lark, "hm <tool_call\n</think~>" + group(call("time")))
    assert model.accepts(lark, "</think~>" + group(call("time")))
    assert not model.accepts(lark, group(call("time")))
    assert not model.accepts(tool_grammar(TOOLS, model.markers), "</think~>" + group(call("time")))


def test_unknown_choice() -> None:
    with pytest.raises(InputError, match="no such tool") as caught:
        tool_grammar(TOOLS, Markers(), choice="fly")
    assert caught.value.where == "fly"
    with pytest.raises(InputError, match="no tool is offered"):
        tool_grammar([], Markers())


@pytest.mark.parametrize(
    ("name", "key", "words"),
    [
        (" f", "a", ["b"]),
        ("f\ng", "a", ["b"]),
        ("f<tool_sep:x>", "a", ["b"]),
        ("f", "a\n", ["b"]),
        ("f", "</arg_key:x>", ["b"]),
        ("f", "a", ["b", "c</arg_value:x>"]),
    ],
)
def test_what_the_parser_would_read_otherwise_is_refused(
    name: str, key: str, words: list[str]
) -> None:
    def tool(name: str, key: str, words: list[str]) -> list[dict[str, Any]]:
        properties = {key: {"type": "string", "enum": words}}
        return [{"function": {"name": name, "parameters": {"properties": properties}}}]

    assert tool_grammar(tool("f<tool_sep>", "a b", [" b\n"]), Markers(":x")), "all of it is data"
    with pytest.raises(InputError) as caught:
        tool_grammar(tool(name, key, words), Markers(":x"))
    assert caught.value.where == "tools"


TREE = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "kids": {"type": "array", "items": {"$ref": "#"}},
        "last": {"type": "array", "items": {"$ref": "#/properties/n"}},
    },
    "required": ["n"],
}


@pytest.mark.parametrize(
    ("key", "value", "fits"),
    [
        ("kids", "[]", True),
        ("kids", '[{"n": 1, "kids": [{"n": 2}]}]', True),
        ("kids", "[[]]", False),
        ("kids", '[{"kids": []}]', False),
        ("last", "[1, 2]", True),
        ("last", "[[1]]", False),
    ],
)
def test_an_argument_may_refer_to_all_parameters(
    model: Model, key: str, value: str, fits: bool
) -> None:
    lark = tool_grammar([{"function": {"name": "f", "parameters": TREE}}], model.markers)
    pairs = (
        f"<arg_key~>{name}</arg_key~>\n<arg_value~>{text}</arg_value~>\n"
        for name, text in (("n", "1"), (key, value))
    )
    assert model.accepts(lark, group(call("f", *pairs))) == fits


def test_endless_recursion_is_refused_before_a_token_is_made() -> None:
    endless = {
        "type": "object",
        "properties": {"x": {"type": "array", "items": {"$ref": "#/$defs/a"}}},
        "$defs": {"a": {"$ref": "#/$defs/a"}},
    }
    with pytest.raises(InputError, match="no finite value fits") as caught:
        tool_grammar([{"function": {"name": "f", "parameters": endless}}], Markers())
    assert caught.value.where == "tools: f"
    with pytest.raises(InputError, match="no finite value fits") as caught:
        json_grammar({"$ref": "#"}, Markers())
    assert caught.value.where == "response_format"


def test_json_answers(model: Model) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    lark = json_grammar(schema, model.markers)
    assert model.accepts(lark, '{"a": 1}')
    assert not model.accepts(lark, '{"a": "1"}')
    assert not model.accepts(lark, 'x{"a": 1}')
    anything = json_grammar(None, model.markers, reasoning=True)
    assert model.accepts(anything, 'so</think~>{"b": [1, {}]}')
    assert not model.accepts(anything, '{"b": 1}')
    assert not model.accepts(anything, "so</think~>[1]")


def test_json_is_no_place_to_hide_in_whitespace(model: Model) -> None:
    """hy3-tiny once filled its whole answer with line breaks, each of them allowed."""
    for schema in (None, {"type": "object", "properties": {"a": {"type": "integer"}}}):
        lark = json_grammar(schema, model.markers)
        assert model.accepts(lark, '{\n        "a": 1\n}')
        assert not model.accepts(lark, "{" + " " * 25 + '"a": 1}')
        assert not model.accepts(lark, "{" + "\n" * 100 + '"a": 1}')


def test_json_or_calls(model: Model) -> None:
    lark = json_grammar(None, model.markers, reasoning=True, tools=TOOLS, parallel=False)
    assert model.accepts(lark, 'so</think~>{"b": 1}')
    assert model.accepts(lark, "so</think~>" + group(call("look", CITY)))
    assert not model.accepts(lark, "so</think~>" + group(call("time"), call("time")))
    assert not model.accepts(lark, 'so</think~>{"b": 1}' + group(call("time")))
    assert not model.accepts(lark, group(call("time")))


def random_completion(model: Model, lark: str, seed: int) -> str:
    """A random walk among the tokens that the grammar allows, hurrying to an end."""
    rng = random.Random(seed)
    matcher = model.matcher(lark)
    ids: list[int] = []
    spelled = {id: model.tokenizer.token_bytes(id) for id in range(model.tokenizer.vocab_size)}
    structure = [id for id, text in spelled.items() if text.startswith(b"<") and len(text) > 1]
    while not matcher.is_stopped():
        assert len(ids) < 2000, "the walk does not end"
        bias = matcher.compute_logit_bias()
        allowed = [id for id, b in enumerate(bias) if b]
        assert allowed
        hurry = 0.2 if len(ids) < 60 else 0.9
        ends = [id for id in structure if bias[id]] if rng.random() < hurry else []
        chosen = rng.choice(ends or allowed)
        assert matcher.consume_token(chosen)
        ids.append(chosen)
    return model.tokenizer.decode(ids)


def fits(arguments: dict[str, Any]) -> bool:
    """An independent reading of the schema of ``look``."""
    return (
        set(arguments) <= {"note", "city", "unit", "days", "exact"}
        and isinstance(arguments["city"], str)
        and arguments.get("unit", "°C") in ("°C", '"F"')
        and len(arguments.get("note", "")) <= 5
        and all(isinstance(d, int) and 0 <= d <= 6 for d in arguments.get("days", []))
        and len(arguments.get("days", [])) <= 2
        and arguments.get("exact") in (True, False, None)
    )


@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_parser_reads_back_what_the_grammar_allows(
    model: Model, seed: int, reasoning: bool
) -> None:
    lark = tool_grammar(TOOLS, model.markers, reasoning=reasoning)
    text = random_completion(model, lark, seed)
    stream = ChatStream(model.markers, TOOLS, reasoning_open=reasoning)
    stream.feed(text)
    stream.finish("stop")
    message = stream.message()
    assert (message.content, stream.malformed) == (None, 0)
    assert stream.finish_reason() == "tool_calls"
    for called in message.tool_calls:
        arguments = json.loads(called.arguments)
        assert fits(arguments) if called.name == "look" else arguments == {}

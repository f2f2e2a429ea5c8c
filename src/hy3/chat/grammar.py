"""Lark grammars, in llguidance's dialect, that hold a completion to calls or to JSON.

Markers are single tokens and are named as such; what is spelled out in ordinary tokens is text and
may not read like a marker. The form is the one the model was trained on: canonical newlines, one
pair a line, JSON with ", " and ": ". Required arguments come first as declared, then any of the
others in their order. A string argument keeps to its ``enum``, ``const`` and lengths, not to a
``pattern``; every other argument keeps to its whole schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hy3.chat.markers import Markers
from hy3.chat.schema_refs import check_recursion, has_references, rebased
from hy3.chat.tools import as_mapping, schema_types
from hy3.errors import InputError

_ANY_OBJECT = {"type": "object"}
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# A model that JSON is forced on likes to hide in whitespace, which JSON allows without end.
_SHORT_SPACES = {"whitespace_pattern": r"[ \t\r\n]{0,24}"}


def tool_grammar(
    tools: Sequence[Mapping[str, Any]],
    markers: Markers,
    choice: str | None = None,
    parallel: bool = True,
    reasoning: bool = False,
) -> str:
    """Lark text for a completion that calls tools and says nothing else.

    Args:
        tools: in OpenAI's form.
        choice: the one tool to call, exactly once; None for any of them.
        parallel: several calls may be made.
        reasoning: the prompt ended with ``<think>``, so reasoning and its end come first.
    """
    functions = [tool.get("function", tool) for tool in tools]
    if choice is not None:
        functions = [function for function in functions if function.get("name") == choice]
    if not functions:
        raise InputError(
            "no such tool is offered" if choice is not None else "no tool is offered",
            hint="name one of the tools of the request",
            where=choice or "tools",
        )
    once = choice is not None or not parallel
    lines = [*_start("group", markers, reasoning), *_group_rules(functions, markers, once)]
    return "\n".join(lines) + "\n"


def json_grammar(
    schema: Mapping[str, Any] | None,
    markers: Markers,
    reasoning: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    parallel: bool = True,
) -> str:
    """Lark text for an answer in JSON: by ``schema``, or any object; reasoning may come first.

    With ``tools`` the completion may also call some of them instead of answering.
    """
    schema = _ANY_OBJECT if schema is None else schema
    check_recursion(schema, "response_format")
    body = json.dumps({"x-guidance": _SHORT_SPACES, **schema})
    reply = "answer | group" if tools else "answer"
    lines = [*_start("reply", markers, reasoning), f"reply: {reply}", f"answer: %json {body}"]
    if tools:
        functions = [tool.get("function", tool) for tool in tools]
        lines += _group_rules(functions, markers, once=not parallel)
    return "\n".join(lines) + "\n"


def _group_rules(functions: Sequence[Mapping[str, Any]], markers: Markers, once: bool) -> list[str]:
    """The rule ``group`` and all that it needs."""
    lines = [
        f'group: {markers.tool_calls_open} "\\n" {"call" if once else "call+"} '
        f"{markers.tool_calls_close}",
        f'call: {markers.tool_call_open} tool {markers.tool_call_close} "\\n"',
        f"tool: {' | '.join(f'tool_{i}' for i in range(len(functions)))}",
        f"TEXT: {_text_without(markers.tool_markup)}",
    ]
    for i, function in enumerate(functions):
        lines += _tool_rules(f"tool_{i}", function, markers)
    return lines


def _start(rule: str, markers: Markers, reasoning: bool) -> list[str]:
    if not reasoning:
        return [f"start: {rule}"]
    # The parser closes reasoning at either spelling, so neither may be spelled out.
    forbidden = (markers.think_close, Markers().think_close)
    return [
        f"start: REASONING {markers.think_close} {rule}",
        f"REASONING: {_text_without(forbidden)}",
    ]


def _text_without(forbidden: Sequence[str]) -> str:
    alternatives = "|".join(map(_escape, dict.fromkeys(forbidden)))
    return f"/(?s:.*)/ & ~/(?s:.*)({alternatives})(?s:.*)/"


def _escape(text: str) -> str:
    """``text`` as a regular expression between slashes; only letters and digits stay bare."""
    return "".join(c if c.isalnum() or c in "_<>:" else f"\\{c}" for c in text)


def _tool_rules(rule: str, function: Mapping[str, Any], markers: Markers) -> list[str]:
    parameters = as_mapping(function.get("parameters"))
    properties = as_mapping(parameters.get("properties"))
    required = list(dict.fromkeys(parameters.get("required") or ()))
    check_recursion(parameters, f"tools: {function['name']}")
    optional = [key for key in properties if key not in required]
    pairs = []
    rules = []
    for number, key in enumerate(required + optional):
        pair = f"{rule}_{number}"
        pairs.append(pair if number < len(required) else f"{pair}?")
        value, extra = _value(f"{pair}_value", as_mapping(properties.get(key)), parameters, markers)
        rules.append(
            f"{pair}: {markers.arg_key_open} {_identifier(key, markers)} {markers.arg_key_close} "
            f'"\\n" {markers.arg_value_open} {value} {markers.arg_value_close} "\\n"'
        )
        rules += extra
    head = f'{rule}: {_identifier(function["name"], markers)} {markers.tool_sep} "\\n"'
    return [" ".join([head, *pairs]), *rules]


def _value(
    name: str, schema: Mapping[str, Any], parameters: Mapping[str, Any], markers: Markers
) -> tuple[str, list[str]]:
    """What stands for a value in its pair's rule, and the rules that this needs."""
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if "string" not in schema_types(schema):
        body = json.dumps({**_on_its_own(schema, parameters), "x-guidance": _COMPACT})
        return name, [f"{name}: %json {body}"]
    if isinstance(choices, list) and choices:
        words = [c if isinstance(c, str) else json.dumps(c, ensure_ascii=False) for c in choices]
        return name, [f"{name}: {' | '.join(_literal(word, markers) for word in words)}"]
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength", "")
    if shortest or longest != "":
        terminal = name.upper()
        return terminal, [f"{terminal}: TEXT & /(?s:.{{{shortest},{longest}}})/"]
    return "TEXT", []


def _on_its_own(schema: Mapping[str, Any], parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of one argument as a document: what it refers to comes with it."""
    if not has_references(schema):
        return schema
    whole = rebased(parameters, "#/$defs/parameters")
    return {**rebased(schema, "#/$defs/parameters"), "$defs": {"parameters": whole}}


def _identifier(text: str, markers: Markers) -> str:
    """A name or a key; the call format gives it no whitespace around and no second line."""
    if text != text.strip() or "\n" in text:
        raise _unspeakable(text)
    return _literal(text, markers)


def _literal(text: str, markers: Markers) -> str:
    if any(marker in text for marker in markers.tool_markup):
        raise _unspeakable(text)
    return json.dumps(text, ensure_ascii=False)


def _unspeakable(text: str) -> InputError:
    return InputError(
        f"no call can hold {text!r} as it is",
        hint="use names and keys without outer whitespace and line breaks, and words without the "
        "markers of tool calls",
        where="tools",
    )

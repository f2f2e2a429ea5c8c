"""Declared types and the reading of values; the corpus has what comes out of whole calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hy3.chat.tools import ToolSet, dump_json, is_json, read_value, schema_types


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({}, {"string"}),
        ({"type": "string"}, {"string"}),
        ({"type": " String "}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer"}),
        ({"type": "null"}, set()),
        ({"type": []}, {"string"}),
        ({"type": 3}, {"string"}),
        ({"anyOf": [{"type": "integer"}, {"type": ["null", "array"]}]}, {"integer", "array"}),
        ({"oneOf": [{"type": "number"}, {"const": 3}, 7]}, {"number"}),
        ({"anyOf": 5}, {"string"}),
        ({"type": "object", "anyOf": [{"type": "string"}]}, {"object"}),
        ({"enum": [1, 2]}, {"string"}),
        ({"$ref": "#/$defs/x"}, {"string"}),
        *[({"type": name}, {"string"}) for name in ("str", "text", "varchar", "char", "enum")],
        *[({"type": name}, {"boolean"}) for name in ("bool", "binary")],
        *[
            ({"type": name}, {"integer"})
            for name in ("int", "int64", "uint8", "long", "short", "unsigned int")
        ],
        *[({"type": name}, {"number"}) for name in ("float32", "double", "num", "numeric")],
        ({"type": "list"}, {"array"}),
        ({"type": "dict"}, {"object"}),
        ({"type": "map"}, {"object"}),
        ({"type": "anything"}, {"anything"}),
    ],
)
def test_types_of_a_schema(schema: dict[str, Any], types: set[str]) -> None:
    assert schema_types(schema) == types


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("1_000", {"integer"}, 1000),
        ("5", {"integer", "string"}, 5),
        ("five", {"integer", "string"}, "five"),
        ("5", {"number"}, 5),
        ("5.", {"number"}, 5.0),
        ("1.5", {"number", "string"}, 1.5),
        ("TRUE", {"boolean", "string"}, True),
        (" true", {"boolean", "string"}, " true"),
        ("[1]", {"array", "string"}, [1]),
        ("[1", {"array", "string"}, "[1"),
        ("{'a': None}", {"object"}, {"a": None}),
        ("null", set(), None),
        ("'quoted'", {"integer"}, "quoted"),
        ('{"a": 1}', {"anything"}, {"a": 1}),
        ("0x10", {"integer"}, 16),  # a literal of Python
        ("1j", {"number"}, "1j"),
        ("inf", {"number"}, "inf"),
        ("-" * 200_000 + "1", {"integer"}, "-" * 200_000 + "1"),
        ("a\x00b", {"integer"}, "a\x00b"),
        ("\ud800", {"integer"}, "\ud800"),
        ("0x" + "f" * 5000, {"integer"}, "0x" + "f" * 5000),  # more digits than Python writes
        ("{[]: 1}", {"object"}, "{[]: 1}"),
    ],
)
def test_values(text: str, types: set[str], value: object) -> None:
    read = read_value(text, frozenset(types))
    assert (type(read), read) == (type(value), value)


TYPE_NAMES = ["string", "integer", "number", "boolean", "array", "object", "any"]


@settings(max_examples=300)
@given(
    text=st.text(max_size=12) | st.from_regex(r"[-0-9.eE_{}\[\]\"',:a-f ]{0,12}", fullmatch=True),
    types=st.frozensets(st.sampled_from(TYPE_NAMES), max_size=3),
)
def test_every_value_can_be_written(text: str, types: frozenset[str]) -> None:
    value = read_value(text, types)
    assert json.loads(dump_json(value)) == value
    if types == {"string"}:
        assert value == text


def test_what_json_has() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    assert is_json(deep)
    assert not is_json([deep])
    assert not is_json({"a": float("nan")})
    assert not is_json({1: 2})
    assert not is_json([(1,)])


def test_surrogates_are_escaped_and_nothing_else() -> None:
    assert dump_json({"é\ud800": "\udfff🗼"}) == '{"é\\ud800": "\\udfff🗼"}'


def test_tool_set_takes_both_forms_and_anything_odd() -> None:
    schema = {"properties": {"n": {"type": "integer"}, "odd": 3}}
    tools = ToolSet(
        [
            {"type": "function", "function": {"name": "nested", "parameters": schema}},
            {"type": "function", "name": "flat", "parameters": schema},
            {"function": None},
            {"function": {"name": 3}},
            {"function": {"name": "bare", "parameters": {"properties": []}}},
        ]
    )
    assert tools
    assert all(name in tools for name in ("nested", "flat", "bare"))
    assert tools.types("flat", "n") == {"integer"}
    assert tools.types("nested", "odd") == tools.types("none", "n") == {"string"}
    assert tools.may_name(" fl")
    assert not tools.may_name("x")
    assert not ToolSet(None)

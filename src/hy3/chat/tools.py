"""The tools that a request offers, and the reading of an argument's text by its declared type.

The order of the attempts in ``read_value`` is that of vLLM 0.33, so that one completion gives the
same call on both. On top of it, every result is JSON: a reading that JSON cannot express, or only
with more than 100 levels, stays the text that the model wrote.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MAX_DEPTH = 100
# A literal of Python's syntax takes a hundred times its length in memory while it is parsed.
_MAX_LITERAL_CHARACTERS = 1 << 16
# What json.loads and literal_eval raise on text that is none of theirs.
_NOT_A_VALUE = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
_SURROGATE = re.compile("[\ud800-\udfff]")
_STRING = frozenset({"string"})
_ALIASES = {
    "str": "string",
    "text": "string",
    "varchar": "string",
    "char": "string",
    "enum": "string",
    "bool": "boolean",
    "binary": "boolean",
    "list": "array",
    "dict": "object",
    "map": "object",
    "double": "number",
}
_PREFIXES = (
    (("int", "uint", "long", "short", "unsigned"), "integer"),
    (("num", "float"), "number"),
)


class ToolSet:
    """Names and argument types of the offered tools, in OpenAI's nested or flat form."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] | None) -> None:
        self._properties: dict[str, Mapping[str, Any]] = {}
        for tool in tools or ():
            function = as_mapping(tool.get("function", tool))
            if isinstance(name := function.get("name"), str):
                parameters = as_mapping(function.get("parameters"))
                self._properties[name] = as_mapping(parameters.get("properties"))

    def __bool__(self) -> bool:
        return bool(self._properties)

    def __contains__(self, name: str) -> bool:
        return name in self._properties

    def may_name(self, text: str) -> bool:
        """Whether ``text``, whitespace around it aside, can still grow into a tool's name."""
        start = text.strip()
        return any(name.startswith(start) for name in self._properties)

    def types(self, name: str, key: str) -> frozenset[str]:
        """The types that an argument may have; unknown tools and keys take strings."""
        schema = self._properties.get(name, {}).get(key)
        return schema_types(schema) if isinstance(schema, Mapping) else _STRING


def as_mapping(value: object) -> Mapping[str, Any]:
    """``value`` if it is an object, else an empty one: a client's schema may hold anything."""
    return value if isinstance(value, Mapping) else {}


def schema_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types that a schema names itself or in its alternatives, without "null"."""
    named = list(_named(schema.get("type")))
    if not named:
        members = schema.get("anyOf") or schema.get("oneOf")
        for member in members if isinstance(members, list) else ():
            named += _named(as_mapping(member).get("type"))
    if not named:
        return _STRING
    return frozenset(map(_canonical, named)) - {"null"}


def _named(declared: object) -> Iterator[str]:
    for item in declared if isinstance(declared, list) else [declared]:
        if isinstance(item, str):
            yield item.strip().lower()


def _canonical(name: str) -> str:
    if name in _ALIASES:
        return _ALIASES[name]
    for prefixes, canonical in _PREFIXES:
        if name.startswith(prefixes):
            return canonical
    return name


def read_value(text: str, types: frozenset[str]) -> Any:
    """The argument that ``text`` stands for: a JSON value, or ``text`` itself."""
    try:
        value = _typed(text, types)
    except _NOT_A_VALUE:
        return text
    return value if is_json(value) else text


def _typed(text: str, types: frozenset[str]) -> Any:
    if "boolean" in types and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if "integer" in types:
        try:
            return int(text)
        except ValueError:
            pass  # the next type may fit
    if "number" in types:
        try:
            return float(text) if re.search("[.eE]", text) else int(text)
        except ValueError:
            pass
    if types - {"boolean", "integer", "number", "string"}:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    if "string" in types:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if len(text) > _MAX_LITERAL_CHARACTERS:
            raise
        return ast.literal_eval(text)


def is_json(value: Any, depth: int = 0) -> bool:
    """Whether JSON has this value, within ``MAX_DEPTH`` levels of arrays and objects."""
    if isinstance(value, list | dict):
        if depth == MAX_DEPTH:
            return False
        if isinstance(value, list):
            return all(is_json(item, depth + 1) for item in value)
        return all(isinstance(k, str) and is_json(v, depth + 1) for k, v in value.items())
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int) and not isinstance(value, bool):
        # Python writes no integer of more digits than it reads.
        return value.bit_length() < 14_000
    return value is None or isinstance(value, str | bool)


def dump_json(value: Any) -> str:
    """``json.dumps(ensure_ascii=False)``, but lone surrogates escaped: UTF-8 cannot hold them."""
    return _SURROGATE.sub(lambda m: f"\\u{ord(m[0]):04x}", json.dumps(value, ensure_ascii=False))

"""Recursion in schemas: refused where no finite value exists, and only there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hy3.chat.schema_refs import check_recursion, has_references, rebased
from hy3.errors import InputError

SELF = {"$ref": "#"}
ENDLESS: dict[str, Any] = {
    "itself": SELF,
    "a definition of itself": {
        "$defs": {"a": {"$ref": "#/$defs/a"}},
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/a"}},
    },
    "a required member": {"type": "object", "properties": {"x": SELF}, "required": ["x"]},
    "a first item": {"type": "array", "prefixItems": [SELF], "minItems": 1},
    "every item": {"type": "array", "items": SELF, "minItems": 1},
    "the second item": {"type": "array", "prefixItems": [True], "items": SELF, "minItems": 2},
    "all choices": {"anyOf": [SELF, {"type": "array", "items": SELF, "minItems": 3}]},
    "one of all": {"allOf": [{"type": "object"}, SELF]},
    "two in a circle": {
        "$defs": {
            "a": {"type": "array", "items": {"$ref": "#/$defs/b"}, "minItems": 1},
            "b": {"type": "object", "properties": {"y": {"$ref": "#/$defs/a"}}, "required": ["y"]},
        },
        "type": "array",
        "items": {"$ref": "#/$defs/a"},
    },
    "an escaped name": {
        "definitions": {"a/b %": {"$ref": "#/definitions/a~1b%20%25"}},
        "oneOf": [{"type": "null"}, {"$ref": "#/definitions/a~1b%20%25"}],
    },
}
ENDING: dict[str, Any] = {
    "an optional member": {"type": "object", "properties": {"x": SELF}},
    "an empty array": {"type": "array", "items": SELF},
    "items after the first": {"type": "array", "prefixItems": [True], "items": SELF, "minItems": 1},
    "null": {"type": "object", "properties": {"x": {"anyOf": [SELF, {"type": "null"}]}},
             "required": ["x"]},
    "another type": {"type": ["object", "null"], "properties": {"x": SELF}, "required": ["x"]},
    "any type": {"properties": {"x": SELF}, "required": ["x"]},
    "an enumeration": {"enum": [{"$ref": "#"}], "properties": {"x": SELF}},
    "a forbidden member": {"type": "object", "properties": {"x": False}, "required": ["x"]},
    "a tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                "required": ["kids"],
            }
        },
        "$ref": "#/$defs/node",
    },
    "no target": {"type": "array", "items": {"$ref": "#/$defs/none"}, "minItems": 1},
    "an anchor": {"$ref": "#there"},
    "another document": {"$ref": "https://example.org/schema"},
    "a member called $ref": {"type": "object", "properties": {"$ref": {"type": "string"}},
                             "required": ["$ref"]},
    "a long chain": {
        "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(50)}
        | {"d50": {"type": "integer"}},
        "$ref": "#/$defs/d0",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_recursion_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="no finite value fits") as caught:
        check_recursion(ENDLESS[name], "tools: f")
    assert caught.value.where == "tools: f" and caught.value.hint


@pytest.mark.parametrize("name", ENDING)
def test_recursion_that_ends_is_taken(name: str) -> None:
    check_recursion(ENDING[name], "tools: f")


def test_a_chain_longer_than_the_rounds_is_left_alone() -> None:
    """Work is bounded: what would take more rounds counts as satisfiable."""
    links = {f"d{i:04}": {"$ref": f"#/$defs/d{i + 1:04}"} for i in range(3000)}
    links |= {"d3000": {"type": "null"}, "endless": {"$ref": "#/$defs/endless"}}
    check_recursion({"$defs": links}, "x")


def test_depth_is_bounded() -> None:
    schema: dict[str, Any] = {"$ref": "#"}
    for _ in range(49):
        schema = {"type": "object", "properties": {"a": schema}}
    check_recursion(schema, "x")
    for _ in range(100_000):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(InputError, match="more than 100 levels"):
        check_recursion(schema, "x")


def test_references_move_with_their_schema() -> None:
    schema = {
        "properties": {"a": SELF, "default": SELF, "$ref": {"type": "string"}},
        "items": [{"$ref": "#/$defs/x"}, {"$ref": "other#"}],
        "const": {"$ref": "#"},
    }
    assert rebased(schema, "#/b") == {
        "properties": {
            "a": {"$ref": "#/b"},
            "default": {"$ref": "#/b"},
            "$ref": {"type": "string"},
        },
        "items": [{"$ref": "#/b/$defs/x"}, {"$ref": "other#"}],
        "const": {"$ref": "#"},
    }
    assert has_references(schema) and not has_references({"const": SELF, "type": "null"})


values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(["#", "#/a", "object"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["$ref", "anyOf", "allOf", "type", "items", "minItems", "a", "required", "enum",
                 "properties", "prefixItems"]
            ),
            inner,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(schema=st.dictionaries(st.sampled_from(["$ref", "anyOf", "type", "properties"]), values))
def test_any_schema_is_judged(schema: dict[str, Any]) -> None:
    """A client's schema may hold anything anywhere: it is judged, never a crash."""
    try:
        check_recursion(schema, "x")
    except InputError as error:
        assert has_references(schema) and error.hint

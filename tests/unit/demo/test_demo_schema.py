"""The schema words of the demo's tool: each rule with a value that breaks it."""

from __future__ import annotations

from typing import Any

import pytest

from hy3.demo.schema import complaint_about

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "hours": {"type": "array", "items": {"type": "number"}},
    },
    "required": ["city"],
}


@pytest.mark.parametrize(
    "value",
    [{"city": "Rome"}, {"city": "", "days": 3, "unit": "C", "hours": [1, 2.5]}],
)
def test_valid(value: Any) -> None:
    assert complaint_about(value, SCHEMA) == ""


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ([], "arguments is not of type object"),
        ({}, "arguments lacks city"),
        ({"city": 3}, "arguments.city is not of type string"),
        ({"city": "Rome", "days": True}, "arguments.days is not of type integer"),
        ({"city": "Rome", "days": 1.5}, "arguments.days is not of type integer"),
        ({"city": "Rome", "unit": "K"}, "arguments.unit is not one of ['C', 'F']"),
        ({"city": "Rome", "hours": [1, "x"]}, "arguments.hours[1] is not of type number"),
        ({"city": "Rome", "town": "x"}, "arguments has unknown town"),
    ],
)
def test_invalid(value: Any, complaint: str) -> None:
    assert complaint_about(value, SCHEMA) == complaint

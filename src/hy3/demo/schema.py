"""The few words of JSON Schema that the demo's own tool uses."""

from __future__ import annotations

from typing import Any

TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}


def complaint_about(value: Any, schema: dict[str, Any], where: str = "arguments") -> str:
    """What makes the value invalid, or an empty string.

    Knows type, properties, required, items and enum; stricter than the standard in one thing:
    a property that the schema does not name is a complaint.
    """
    kind = schema.get("type")
    if kind is not None and not _is(value, kind):
        return f"{where} is not of type {kind}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} is not one of {schema['enum']}"
    if isinstance(value, list):
        parts = ((item, schema.get("items", {}), f"{where}[{i}]") for i, item in enumerate(value))
        return next(filter(None, (complaint_about(*part) for part in parts)), "")
    if not isinstance(value, dict):
        return ""
    properties = schema.get("properties", {})
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        return f"{where} lacks {', '.join(missing)}"
    unknown = [name for name in value if name not in properties]
    if unknown:
        return f"{where} has unknown {', '.join(unknown)}"
    found = (
        complaint_about(item, properties[name], f"{where}.{name}")
        for name, item in value.items()
        if name in properties
    )
    return next(filter(None, found), "")


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):  # Python counts it as an integer, JSON does not
        return kind == "boolean"
    return isinstance(value, TYPES[kind])

"""References within a JSON schema: moved along with it, and refused where they never end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard
from urllib.parse import unquote

from hy3.chat.tools import MAX_DEPTH, is_json
from hy3.errors import InputError

# Below these keywords stand values, not schemas: a "$ref" in them refers to nothing.
_VALUES = ("const", "enum", "default", "examples")
# Below these keywords stand names, each with a schema.
_NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
# Each round looks at every target once. A chain of definitions, each after its user, takes one
# round a link; what is longer than this is left to the length limit of the answer.
_MAX_ROUNDS = 100


def rebased(schema: Any, base: str) -> Any:
    """A copy whose references to its own document lead to ``base``, a JSON pointer with its #."""
    if isinstance(schema, list):
        return [rebased(item, base) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    copy = {**schema}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, Mapping):
            copy[key] = {name: rebased(each, base) for name, each in value.items()}
        elif key == "$ref":
            copy[key] = base + value[1:] if _is_local(value) else value
        elif key not in _VALUES:
            copy[key] = rebased(value, base)
    return copy


def has_references(schema: Any) -> bool:
    """Whether a reference to its own document stands in it."""
    return next(_references(schema), None) is not None


def check_recursion(schema: Mapping[str, Any], where: str) -> None:
    """Raises InputError if some reference in ``schema`` can never be satisfied by a finite value,
    or the schema is too deep to be walked.

    The finite values are those of a least fixed point: a definition has one if it needs no
    reference, or only references to definitions that have one. Keywords that restrict otherwise
    count as satisfiable, so nothing is refused that has a value.
    """
    if not is_json(schema):
        raise InputError(
            f"the schema has more than {MAX_DEPTH} levels, or a number that JSON cannot hold",
            hint="give what is deep a definition of its own under $defs",
            where=where,
        )
    targets = {ref: _resolve(schema, ref) for ref in _references(schema)}
    finite = {ref for ref, target in targets.items() if target is None}  # not ours to judge
    for _ in range(_MAX_ROUNDS):
        found = {ref for ref in targets.keys() - finite if _is_finite(targets[ref], finite)}
        finite |= found
        if not found:
            break
    else:
        return
    for ref in targets:
        if ref not in finite:
            raise InputError(
                f"no finite value fits {ref!r} of the schema: it refers to itself on every path",
                hint="give the recursion an end: an optional property, an empty array, or anyOf "
                "with something else",
                where=where,
            )


def _is_local(reference: Any) -> TypeGuard[str]:
    return isinstance(reference, str) and reference.startswith("#")


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _references(item)
    elif isinstance(schema, Mapping):
        if _is_local(reference := schema.get("$ref")):
            yield reference
        for key, item in schema.items():
            if key in _NAMED and isinstance(item, Mapping):
                yield from _references(list(item.values()))
            elif key not in _VALUES:
                yield from _references(item)


def _resolve(root: Mapping[str, Any], reference: str) -> Any:
    """What a reference leads to, None for an anchor or nowhere."""
    if reference[1:] and not reference.startswith("#/"):
        return None
    found: Any = root
    for part in reference.split("/")[1:]:
        part = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(part)
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found


def _is_finite(schema: Any, finite: set[str]) -> bool:
    """Whether a finite value fits, if the references in ``finite`` have one and no others do."""
    if not isinstance(schema, Mapping):
        return True
    if _is_local(ref := schema.get("$ref")) and ref not in finite:
        return False
    if not all(_is_finite(each, finite) for each in _list(schema, "allOf")):
        return False
    for key in ("anyOf", "oneOf"):
        choices = _list(schema, key)
        if choices and not any(_is_finite(each, finite) for each in choices):
            return False
    if "const" in schema or "enum" in schema:
        return True
    types = schema.get("type")
    wanted = types if isinstance(types, list) else [types]
    return any(_type_is_finite(schema, each, finite) for each in wanted) or not wanted


def _type_is_finite(schema: Mapping[str, Any], kind: Any, finite: set[str]) -> bool:
    if kind == "object":
        properties = schema.get("properties")
        members = properties if isinstance(properties, Mapping) else {}
        required = [name for name in _list(schema, "required") if isinstance(name, str)]
        return all(_is_finite(members.get(name), finite) for name in required)
    if kind == "array":
        least = schema.get("minItems", 0)
        least = int(least) if isinstance(least, int | float) and least > 0 else 0
        first = _list(schema, "prefixItems")
        needed = first[:least] + ([schema.get("items")] if least > len(first) else [])
        return all(_is_finite(each, finite) for each in needed)
    return True


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []

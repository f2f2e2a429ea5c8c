"""JSON from untrusted files: what is read can be written again, and every fault has an offset.

Stricter than the standard library: no duplicate keys, no NaN, no number beyond a double, no half
of a surrogate pair, at most ``MAX_DEPTH`` levels.
"""

from __future__ import annotations

import json
import math
import reprlib
from typing import Any

# Far above any checkpoint's files and far below the interpreter's own limit, which depends on who
# calls: what is accepted here can be walked and encoded by recursion anywhere.
MAX_DEPTH = 100


class JsonFault(Exception):
    """Why a text is not the JSON object it should be.

    Args:
        reason: a clause such as ``is not valid JSON (...)``.
        offset: byte offset into the parsed text.
        key: the top-level key concerned, or an empty string.
    """

    def __init__(self, reason: str, offset: int, key: str = "") -> None:
        super().__init__(reason)
        self.reason, self.offset, self.key = reason, offset, key


class _Refused(ValueError):
    """A literal that the standard library would take."""


class _Repeated:
    """Stands for an object in which ``key`` occurs twice."""

    def __init__(self, key: str) -> None:
        self.key = key


_CONTAINERS = frozenset({dict, list, _Repeated})


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse UTF-8 JSON that must be an object; raises JsonFault on anything else."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonFault("is not valid UTF-8", error.start) from error
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode("utf-8"))
        raise JsonFault(f"is not valid JSON ({error.msg})", offset) from error
    except RecursionError as error:
        raise _too_deep() from error
    except _Refused as error:
        raise JsonFault(f"is not valid JSON ({error})", 0) from error
    except ValueError as error:
        # The interpreter's limit on the digits of an integer, whose text advises programmers.
        raise JsonFault("holds a number with too many digits", 0) from error
    _check_containers(value, raw)
    if b"\\u" in raw and not is_text(value):
        raise JsonFault("holds half of a surrogate pair, which is not text", 0)
    if not isinstance(value, dict):
        raise JsonFault(f"is a JSON {type(value).__name__}, not an object", 0)
    return value


def is_text(value: Any) -> bool:
    """Whether every string of a parsed value can be written again.

    An escape such as ``\\ud800`` that stands alone parses, but no encoding has it.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def key_offset(raw: bytes, key: str, start: int = 0) -> int:
    """Byte offset of ``key`` as it is usually quoted in ``raw``, else 0; for messages only."""
    for ascii_only in (False, True):
        quoted = json.dumps(key, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        found = raw.find(quoted, start)
        if found >= 0:
            return found
    return 0


def shown(value: Any) -> str:
    """A value of a file as a message can hold it: one line, however large it is."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 3


def _check_containers(value: Any, raw: bytes) -> None:
    """No more than MAX_DEPTH levels, and no object with a repeated key on any of them."""
    level = _containers([[value]])
    for depth in range(1, MAX_DEPTH + 1):
        for item in level:
            if type(item) is _Repeated:
                raise _twice(value, item, raw)
        level = _containers(level, empty=depth == MAX_DEPTH)
    if level:
        raise _too_deep()


def _containers(level: list[Any], empty: bool = False) -> list[Any]:
    """The containers that lie directly in those of ``level``; Hy3's headers hold 400,000.

    Empty ones have nothing below them; a file may hold so many that a list of them would be large.
    """
    return [
        child
        for item in level
        for child in (item.values() if type(item) is dict else item)
        if type(child) in _CONTAINERS and (child or empty)
    ]


def _twice(value: Any, item: _Repeated, raw: bytes) -> JsonFault:
    """Names the repeated key, and below the top the entry that it lies in."""
    if value is item or not isinstance(value, dict):
        second = key_offset(raw, item.key, key_offset(raw, item.key) + 1)
        return JsonFault(f"has the key {shown(item.key)} twice", second, item.key)
    entry = next(key for key, each in value.items() if _holds(each, item))
    reason = f"has the key {shown(item.key)} twice in the entry {shown(entry)}"
    return JsonFault(reason, key_offset(raw, entry), entry)


def _holds(value: Any, wanted: _Repeated) -> bool:
    if not isinstance(value, dict | list):
        return value is wanted
    return any(_holds(child, wanted) for child in _containers([value]))


def _too_deep() -> JsonFault:
    return JsonFault(f"is nested more than {MAX_DEPTH} levels deep", 0)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Repeated:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return _Repeated(key)
        seen.add(key)
    raise AssertionError("a dict is shorter than its pairs only when a key repeats")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _Refused(f"{shown(text)} is beyond every double")
    return value


def _refuse_constant(name: str) -> Any:
    raise _Refused(f"{name} is not JSON")

"""JSON from untrusted files: duplicate keys and NaN are refused, every fault has a byte offset."""

from __future__ import annotations

import json
from typing import Any


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


class _Repeated:
    """Stands for an object in which ``key`` occurs twice."""

    def __init__(self, key: str) -> None:
        self.key = key


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse UTF-8 JSON that must be an object; raises JsonFault on anything else."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonFault("is not valid UTF-8", error.start) from error
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode("utf-8"))
        raise JsonFault(f"is not valid JSON ({error.msg})", offset) from error
    except (ValueError, RecursionError) as error:
        raise JsonFault(f"is not valid JSON ({error})", 0) from error
    if b"\\u" in raw and not is_text(value):
        raise JsonFault("holds half of a surrogate pair, which is not text", 0)
    if isinstance(value, _Repeated):
        first = key_offset(raw, value.key)
        second = key_offset(raw, value.key, first + 1)
        raise JsonFault(f"has the key {value.key!r} twice", second, value.key)
    if not isinstance(value, dict):
        raise JsonFault(f"is a JSON {type(value).__name__}, not an object", 0)
    for key, item in value.items():
        if isinstance(item, _Repeated):
            reason = f"has the key {item.key!r} twice in the entry {key!r}"
            raise JsonFault(reason, key_offset(raw, key), key)
    return value


def is_text(value: Any) -> bool:
    """Whether every string of a parsed value can be written again.

    An escape such as ``\\ud800`` that stands alone parses, but no encoding has it.
    """
    try:
        json.dumps(value, ensure_ascii=False, default=vars).encode("utf-8")
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


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")

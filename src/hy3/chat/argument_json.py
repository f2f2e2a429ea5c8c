"""JSON of arguments: written pair by pair, or found whole in the text of a call."""

from __future__ import annotations

import json
import re
from typing import Any

from hy3.chat.tools import dump_json, is_json

_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING_END = re.compile(r'["\\]')


class ArgumentWriter:
    """Writes a JSON object as ``json.dumps`` would, in fragments that are valid once joined.

    Attributes:
        keys: the keys written so far.
    """

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self._fragments: list[str] = []
        self._taken = 0

    def add(self, key: str, value: Any) -> None:
        """Write a whole pair."""
        self._begin(key)
        self._fragments.append(dump_json(value))

    def open_string(self, key: str) -> None:
        """Begin a pair whose value is a string that comes in pieces."""
        self._begin(key)
        self._fragments.append('"')

    def add_to_string(self, text: str) -> None:
        """Write the next piece of the open string."""
        self._fragments.append(dump_json(text)[1:-1])

    def close_string(self) -> None:
        """End the open string."""
        self._fragments.append('"')

    def close(self) -> None:
        """End the object."""
        self._fragments.append("}" if self.keys else "{}")

    def take(self) -> str:
        """The fragment written since the last call."""
        fragment = "".join(self._fragments[self._taken :])
        self._taken = len(self._fragments)
        return fragment

    def text(self) -> str:
        """All that was written."""
        return "".join(self._fragments)

    def _begin(self, key: str) -> None:
        self._fragments.append(f"{', ' if self.keys else '{'}{dump_json(key)}: ")
        self.keys.add(key)


class ObjectScanner:
    """Follows the text of a JSON object to the brace that ends it; checks nothing else."""

    def __init__(self) -> None:
        self.in_string = False
        self.complete = False
        self._escaped = False
        self._depth = 0

    def feed(self, text: str) -> int:
        """The index after the object's end, or the length of ``text`` if it goes on."""
        position = 0
        while position < len(text) and not self.complete:
            position = (
                self._string(text, position) if self.in_string else self._step(text, position)
            )
        return position

    def _step(self, text: str, position: int) -> int:
        match = _STRUCTURE.search(text, position)
        if match is None:
            return len(text)
        if match[0] == '"':
            self.in_string = True
        else:
            self._depth += 1 if match[0] in "{[" else -1
            self.complete = self._depth == 0
        return match.end()

    def _string(self, text: str, position: int) -> int:
        if self._escaped:
            self._escaped = False
            return position + 1
        match = _STRING_END.search(text, position)
        if match is None:
            return len(text)
        self._escaped = match[0] == "\\"
        self.in_string = self._escaped
        return match.end()


def read_object(text: str) -> dict[str, Any]:
    """The object that ``text`` writes, empty if it is none; of duplicate keys the first counts."""
    outermost: list[tuple[str, Any]] = []

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        outermost[:] = pairs  # the outermost object is the last to be finished
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=keep)
    except (ValueError, RecursionError):
        return {}
    if not is_json(value):
        return {}
    first: dict[str, Any] = {}
    for key, item in outermost:
        first.setdefault(key, item)
    return first

"""``MarkerLexer``: splits streamed text into markers and what stands between them.

A marker is reported whole or not at all, wherever the chunks were cut; this is what makes the
parser above it independent of chunking. Text that may still become a marker is held back.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hy3.chat.markers import Markers

THINK = ("think", "/think")
TOOLS = (
    "tool_calls",
    "/tool_calls",
    "tool_call",
    "/tool_call",
    "tool_sep",
    "arg_key",
    "/arg_key",
    "arg_value",
    "/arg_value",
)


class Token(NamedTuple):
    """A marker, or a piece of text if ``marker`` is empty."""

    text: str  # as it was written
    marker: str = ""  # "tool_call", "/tool_call", ...
    spelling: str = ""  # the suffix that it carried


class MarkerLexer:
    """Knows the markers of a checkpoint in its own spelling and in the bare one."""

    def __init__(self, markers: Markers, with_tools: bool) -> None:
        names = THINK + TOOLS if with_tools else THINK
        spellings = {markers.suffix, ""}
        texts = [f"<{name}{spelling}>" for name in names for spelling in spellings]
        self._prefixes = {text[:end] for text in texts for end in range(1, len(text))}
        alternatives = "|".join(map(re.escape, names))
        suffix = re.escape(markers.suffix)
        self._pattern = re.compile(f"<({alternatives})((?:{suffix})?)>")
        self._held = ""

    def feed(self, text: str) -> list[Token]:
        """The tokens that ``text`` completes; no token is empty."""
        text = self._held + text
        tokens: list[Token] = []
        start = 0
        for match in self._pattern.finditer(text):
            if match.start() > start:
                tokens.append(Token(text[start : match.start()]))
            tokens.append(Token(match[0], match[1], match[2]))
            start = match.end()
        # A marker has one "<", at its beginning, so only the last one can be a beginning.
        last = text.rfind("<", start)
        cut = last if last >= 0 and text[last:] in self._prefixes else len(text)
        self._held = text[cut:]
        if cut > start:
            tokens.append(Token(text[start:cut]))
        return tokens

    def flush(self) -> list[Token]:
        """At the end, what was held back is text."""
        held, self._held = self._held, ""
        return [Token(held)] if held else []

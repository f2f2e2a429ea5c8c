"""Token ids to text, one token at a time, with stop strings matched on the text.

The text does not depend on how the tokens were grouped into steps, and neither does the token at
which a stop string ends. Text that may still become part of a stop string is held back, so no
part of one is ever released.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Released:
    """What a run of tokens made certain."""

    text: str
    tokens: int  # how many of the given tokens count: all, or up to the one that ends a stop
    stop: str | None = None  # the stop string that ended the text


class StopFinder:
    """Finds the stop string that ends first; of several that end together, the longest."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self._longest = max(map(len, self.stops), default=0)
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """Take more text; return what is certain, and the stop string that ended it if one did."""
        text = self._held + text
        ends = [(at + len(stop), at, stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if ends:
            _, start, stop = min(ends)
            self._held = ""
            return text[:start], stop
        certain = len(text) - self._undecided(text)
        self._held = text[certain:]
        return text[:certain], None

    def finish(self) -> str:
        """The text held back, which now cannot become a stop string any more."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins some stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            ending = text[-length:]
            if any(stop.startswith(ending) for stop in self.stops):
                return length
        return 0


class Detokenizer:
    """The text of one generated sequence.

    Args:
        token_bytes: the bytes a token stands for; empty for tokens that never show.
        stops: stop strings, each not empty.
        min_tokens: stop strings count only in text that comes after this many tokens.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], stops: Sequence[str] = (), min_tokens: int = 0
    ) -> None:
        self._token_bytes = token_bytes
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._finder = StopFinder(stops)
        self._unchecked_tokens = min_tokens

    def feed(self, token_ids: Sequence[int]) -> Released:
        """Take one step's tokens, however many; tokens after a stop string are not counted."""
        text = ""
        for count, token_id in enumerate(token_ids, 1):
            piece = self._characters.decode(self._token_bytes(token_id))
            if self._unchecked_tokens > 0:
                self._unchecked_tokens -= 1
                text += piece
                continue
            piece, stop = self._finder.feed(piece)
            text += piece
            if stop is not None:
                return Released(text, count, stop)
        return Released(text, len(token_ids))

    def finish(self) -> Released:
        """The rest, after the last token: held text, and a replacement for a cut character."""
        text, stop = self._finder.feed(self._characters.decode(b"", final=True))
        return Released(text if stop else text + self._finder.finish(), 0, stop)

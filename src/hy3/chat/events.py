"""What the parser of a completion reports: events while it streams, one message at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins; its name is complete, its arguments follow as fragments."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """The next piece of a call's arguments; the pieces join to one JSON object."""

    index: int
    fragment: str


Event = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArguments


@dataclass(frozen=True)
class ToolCall:
    """A finished call; ``arguments`` is the text of a JSON object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ParsedMessage:
    """The whole completion; what is empty is None."""

    reasoning: str | None
    content: str | None
    tool_calls: tuple[ToolCall, ...]


def coalesce(events: Iterable[Event]) -> Iterator[Event]:
    """Join neighbouring deltas of one kind (of one call), in linear time."""
    for _, run in groupby(events, lambda event: (type(event), getattr(event, "index", None))):
        yield _join(list(run))


def _join(run: list[Event]) -> Event:
    first = run[0]
    if isinstance(first, ToolCallStart):
        return first  # each has an index of its own
    if isinstance(first, ToolCallArguments):
        fragments = (event.fragment for event in run if isinstance(event, ToolCallArguments))
        return ToolCallArguments(first.index, "".join(fragments))
    texts = (event.text for event in run if isinstance(event, ReasoningDelta | ContentDelta))
    return type(first)("".join(texts))

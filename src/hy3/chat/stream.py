"""``ChatStream``: one completion of Hy3, read as it streams into reasoning, content and calls.

    completion := [reasoning </think>] content [group]
    group      := <tool_calls> ws call (ws call)* ws </tool_calls>
    call       := <tool_call> NAME <tool_sep> ws (pair ws)* </tool_call>

Whatever the chunks, the events are the same once neighbouring deltas are joined: the lexer hands
over markers whole, and no state looks at where a piece of text ends. The states are methods that
take one token; ``arguments.py`` has those inside a call. What is done with completions that do not
follow the grammar is told in docs/chat.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal
from uuid import uuid4

from hy3.chat.arguments import ArgumentReader
from hy3.chat.events import (
    ContentDelta,
    Event,
    ParsedMessage,
    ReasoningDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallStart,
    coalesce,
)
from hy3.chat.lexer import MarkerLexer, Token
from hy3.chat.markers import Markers
from hy3.chat.tools import ToolSet


def new_call_id() -> str:
    """An id that no other call has."""
    return f"call_{uuid4().hex[:24]}"


class ChatStream:
    """Feed text, then finish once; events come back from both.

    Args:
        markers: the checkpoint's markers; bare ones are understood besides.
        tools: what the request offered, in OpenAI's form; without any, tool markup is content.
        reasoning_open: the prompt ended with ``<think>``.
        make_id: gives each call its id.

    Attributes:
        malformed: calls that were salvaged, and markup that should have been a call but is none.
    """

    def __init__(
        self,
        markers: Markers,
        tools: Sequence[Mapping[str, Any]] | None,
        reasoning_open: bool,
        make_id: Callable[[], str] = new_call_id,
    ) -> None:
        self.malformed = 0
        self._tools = ToolSet(tools)
        self._lexer = MarkerLexer(markers, with_tools=bool(self._tools))
        self._make_id = make_id
        self._read: Callable[[Token], None] = self._reasoning if reasoning_open else self._text
        self._at_start = True
        self._at_end: Literal["", "stop", "length"] = ""

        self._group: str | None = None  # the spelling of the open <tool_calls>
        self._opener = Token("")  # the <tool_call> whose name or arguments are being read
        self._name: list[str] = []
        self._reader: ArgumentReader | None = None

        self._structured = False  # a group or a call has been seen
        self._spaces: list[str] | None = []  # whitespace since the last of these; None: text came
        self._after_loose_call = False

        self._events: list[Event] = []
        self._reasoning_text: list[str] = []
        self._content_text: list[str] = []
        self._calls: list[ToolCall] = []

    def feed(self, text: str) -> list[Event]:
        """The events that ``text`` brings about."""
        for token in self._lexer.feed(text):
            self._read(token)
        return self._drain()

    def finish(self, reason: Literal["stop", "length"]) -> list[Event]:
        """End the completion: by itself or by a stop string ("stop"), or cut ("length")."""
        assert not self._at_end, "a stream ends once"
        for token in self._lexer.flush():
            self._read(token)
        self._at_end = reason
        if self._reader is not None:
            self._finish_call()
        if self._reader is not None:  # one that began after the marker that ended the first
            self._finish_call()
        if self._read == self._in_name:
            self._finish_name()
        if self._spaces and not self._structured:
            self._emit_content("".join(self._spaces))
        return self._drain()

    def message(self) -> ParsedMessage:
        """All that was read."""
        reasoning, content = "".join(self._reasoning_text), "".join(self._content_text)
        return ParsedMessage(reasoning or None, content or None, tuple(self._calls))

    def finish_reason(self) -> Literal["stop", "length", "tool_calls"]:
        """The reason of the OpenAI API; known after ``finish``."""
        assert self._at_end, "the completion has not ended"
        if self._at_end == "length":
            return "length"
        return "tool_calls" if self._calls else "stop"

    # -- reasoning and content ---------------------------------------------------------------

    def _reasoning(self, token: Token) -> None:
        at_start, self._at_start = self._at_start, False
        if token.marker == "/think":
            self._read = self._text
        elif not (token.marker == "think" and at_start):  # the prompt has opened it already
            self._reasoning_text.append(token.text)
            self._events.append(ReasoningDelta(token.text))

    def _text(self, token: Token) -> None:
        """Content, outside of groups and between the calls of one."""
        self._at_start = False
        match self._marker(token, self._group):
            case "think":
                self._read = self._reasoning
            case "/think":
                pass
            case "tool_calls":
                self._begin_segment()
                self._group = token.spelling
            case "/tool_calls" if self._group is not None or self._closes_loose_call(token):
                self._begin_segment()
                self._group = None
            case "tool_call":
                self._opener = token
                self._name = []
                self._read = self._in_name
            case _:
                self._content(token.text)

    def _marker(self, token: Token, spelling: str | None) -> str:
        """The token's marker; none where another spelling is spoken."""
        return token.marker if spelling in (None, token.spelling) else ""

    def _content(self, text: str) -> None:
        """Whitespace waits: alone before, between or after groups and calls, it is dropped."""
        if self._spaces is not None:
            if text.isspace():
                self._spaces.append(text)
                return
            text = "".join(self._spaces) + text
            self._spaces = None
            self._after_loose_call = False
        self._emit_content(text)

    def _emit_content(self, text: str) -> None:
        self._content_text.append(text)
        self._events.append(ContentDelta(text))

    def _begin_segment(self) -> None:
        self._structured = True
        self._spaces = []
        self._after_loose_call = False

    def _closes_loose_call(self, token: Token) -> bool:
        """A group's end right after a call whose group never began."""
        return self._after_loose_call and token.spelling == self._opener.spelling

    # -- calls ------------------------------------------------------------------------------

    def _in_name(self, token: Token) -> None:
        marker = self._marker(token, self._opener.spelling)
        if not marker:
            self._name.append(token.text)
            if self._group is None and not token.text.isspace() and not self._may_be_call():
                self._release_name()
            return
        name, rest = self._split_name()
        if not name or (self._group is None and name not in self._tools):
            self.malformed += self._group is not None
            self._release_name()
            self._text(token)
            return
        reader = self._begin_call(name)
        reader.flawed |= marker != "tool_sep" or bool(rest)
        if marker != "tool_sep":
            if rest:
                reader.read(Token(rest))
            self._in_call(token)

    def _may_be_call(self) -> bool:
        return self._tools.may_name("".join(self._name))

    def _split_name(self) -> tuple[str, str]:
        """The name, which a line ends, and what follows it."""
        name, _, rest = "".join(self._name).strip().partition("\n")
        return name.rstrip(), rest.strip()

    def _release_name(self) -> None:
        """It was no call after all: its markup is content."""
        self._read = self._text
        self._content(self._opener.text + "".join(self._name))

    def _begin_call(self, name: str) -> ArgumentReader:
        self._begin_segment()
        call = ToolCall(self._make_id(), name, "")
        self._events.append(ToolCallStart(len(self._calls), call.id, name))
        self._calls.append(call)
        self._reader = ArgumentReader(partial(self._tools.types, name), bool(self._at_end))
        self._reader.flawed = self._group is None
        self._read = self._in_call
        return self._reader

    def _in_call(self, token: Token) -> None:
        assert self._reader is not None
        marker = self._marker(token, self._opener.spelling)
        if self._reader.read(token if marker else Token(token.text)):
            self._emit_arguments(self._reader)
            return
        self._reader.flawed |= marker != "/tool_call"
        self._end_call()
        if marker != "/tool_call":
            self._text(token)

    def _emit_arguments(self, reader: ArgumentReader) -> None:
        if fragment := reader.writer.take():
            self._events.append(ToolCallArguments(len(self._calls) - 1, fragment))

    def _end_call(self) -> None:
        reader, self._reader = self._reader, None
        assert reader is not None
        reader.writer.close()
        self._emit_arguments(reader)
        call = self._calls[-1]
        self._calls[-1] = ToolCall(call.id, call.name, reader.writer.text())
        self.malformed += reader.flawed
        self._read = self._text
        self._begin_segment()
        self._after_loose_call = self._group is None

    # -- the end ------------------------------------------------------------------------------

    def _finish_call(self) -> None:
        """Close the open call; if a marker inside its last value ended it, read on from there."""
        assert self._reader is not None
        after = self._reader.finish()
        self._reader.flawed |= bool(after) or self._at_end == "stop"
        self._end_call()
        if after and after[0].marker == "/tool_call":
            after = after[1:]
        for token in after:
            self._read(token)

    def _finish_name(self) -> None:
        """A name that nothing has ended is a call only if the model meant to stop there."""
        name, rest = self._split_name()
        if self._at_end == "stop" and name in self._tools:
            reader = self._begin_call(name)
            if rest:
                reader.read(Token(rest))
            self._finish_call()
        elif self._group is not None:
            self.malformed += self._at_end == "stop"
        elif self._at_end == "stop" or not self._may_be_call():
            self._release_name()

    def _drain(self) -> list[Event]:
        events = list(coalesce(self._events))
        self._events.clear()
        return events

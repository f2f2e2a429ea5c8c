"""``ArgumentReader``: the inside of one tool call, from after its name to before its end.

    pair := <arg_key> KEY </arg_key> ws <arg_value> TEXT </arg_value>

A value is delimited by markers that may also occur inside it as data, so the reader decides late:
``</arg_value>`` ends a value only when something follows that may follow a value, and from a
``</tool_call>`` inside an open value on, text waits for the proper end that shows it was data.
The states are methods; each takes a token and returns whether the call is still open after it.
"""

from __future__ import annotations

from collections.abc import Callable

from hy3.chat.argument_json import ArgumentWriter, ObjectScanner, read_object
from hy3.chat.lexer import Token
from hy3.chat.tools import read_value

_CALL_ENDS = frozenset({"/tool_call", "tool_call", "/tool_calls", "tool_calls"})
_AFTER_VALUE = frozenset({"arg_key", "/tool_call", "tool_call", "/tool_calls"})
_KEY_ENDS = _CALL_ENDS | {"arg_key", "/arg_value"}
_CLOSING = frozenset({"/arg_value", "/arg_key"})
_CALL_CLOSING = frozenset({"/tool_call", "/tool_calls"})
_STRING = frozenset({"string"})


class ArgumentReader:
    """Reads one call's arguments into JSON.

    Args:
        types: the declared types of an argument, by its key.
        at_end: the completion has ended and no proper end follows, so nothing needs to wait.

    Attributes:
        flawed: something in the call was not as the format has it.
        writer: the JSON written so far.
    """

    def __init__(self, types: Callable[[str], frozenset[str]], at_end: bool) -> None:
        self.flawed = False
        self.writer = ArgumentWriter()
        self._types = types
        self._at_end = at_end
        self._state: Callable[[Token], bool] = self._between
        self._key: str | None = None  # None: the value has no key of its own and is dropped
        self._text: list[str] = []  # of the key, or of the value that is not written as it comes
        self._streams = False  # the open value is a string and is written as it comes
        self._closing: list[Token] = []  # </arg_value> and what followed, until decided
        self._waiting: list[Token] = []  # from </tool_call> inside an open value on
        self._scanner = ObjectScanner()
        self._may_be_object = True

    def read(self, token: Token) -> bool:
        """Take a token; False if the call ends before it."""
        return self._state(token)

    def finish(self) -> list[Token]:
        """End with the completion; returns the tokens that turn out to stand after the call."""
        if self._state == self._value_closing:
            self._end_value()
        elif self._state == self._value:
            self._cut_value()
        waiting, self._waiting = self._waiting, []
        return waiting

    def _between(self, token: Token) -> bool:
        """Between pairs: a key, the end of the call, or at the start an object of JSON."""
        if token.marker in _CALL_ENDS:
            return False
        if token.marker == "arg_key":
            self._begin_key()
        elif token.marker == "arg_value":
            self.flawed = True
            self._key = None
            self._begin_value()
        elif token.marker:
            self.flawed = True
        elif not token.text.isspace():
            return self._between_text(token.text.lstrip())
        return True

    def _between_text(self, text: str) -> bool:
        self.flawed = True
        if self._may_be_object and text.startswith("{"):
            self._text = []
            self._state = self._object
            return self._object(Token(text))
        self._may_be_object = False
        return True

    def _begin_key(self) -> None:
        self._text = []
        self._may_be_object = False
        self._state = self._in_key

    def _in_key(self, token: Token) -> bool:
        if token.marker == "/arg_key":
            self._end_key()
            self._state = self._after_key
        elif token.marker == "arg_value":
            self.flawed = True
            self._end_key()
            self._begin_value()
        elif token.marker in _KEY_ENDS:
            return self._drop_key(token)
        else:
            self._text.append(token.text)
        return True

    def _end_key(self) -> None:
        self._key = "".join(self._text).strip()
        self._text = []

    def _drop_key(self, token: Token) -> bool:
        """The key has no value; the token is read as if it had not been there."""
        self.flawed = True
        self._state = self._between
        return self._between(token)

    def _after_key(self, token: Token) -> bool:
        """After the key: its value, or without ``<arg_value>`` the text up to ``</arg_value>``."""
        if token.marker == "arg_value":
            self.flawed |= bool("".join(self._text).strip())
            self._begin_value()
        elif token.marker == "/arg_value":
            self.flawed = True
            value = "".join(self._text).lstrip()
            self._begin_value()
            self._add(value)
            self._end_value()
        elif token.marker in _KEY_ENDS:
            return self._drop_key(token)
        elif token.marker == "/arg_key":
            self.flawed = True
        else:
            self._text.append(token.text)
        return True

    def _begin_value(self) -> None:
        self._text = []
        self._state = self._value
        if self._key is not None and self._key in self.writer.keys:
            self.flawed = True
            self._key = None  # of duplicate keys the first counts
        self._streams = self._key is not None and self._types(self._key) == _STRING
        if self._key is not None and self._streams:
            self.writer.open_string(self._key)

    def _value(self, token: Token) -> bool:
        if token.marker == "/arg_value":
            self._closing = [token]
            self._state = self._value_closing
        elif token.marker in _CALL_CLOSING and self._at_end:
            self.flawed = True
            self._cut_value()
            return False
        elif self._waiting or token.marker in _CALL_CLOSING:
            self._waiting.append(token)
        else:
            self._add(token.text)
        return True

    def _value_closing(self, token: Token) -> bool:
        """After ``</arg_value>``: was it the end of the value, or a part of it?"""
        if token.marker in _CLOSING or token.text.isspace():
            self._closing.append(token)
            return True
        if token.marker in _AFTER_VALUE:
            self._end_value()
            return self._between(token)
        closing, self._closing = self._closing, []
        self._state = self._value
        if self._waiting:
            self._waiting += closing
        else:
            self._add("".join(part.text for part in closing))
        return self._value(token)

    def _add(self, text: str) -> None:
        if self._streams:
            self.writer.add_to_string(text)
        else:
            self._text.append(text)

    def _end_value(self) -> None:
        # The end of a call inside a value is data, but more often two calls have run together.
        self.flawed |= bool(self._waiting) or any(token.marker for token in self._closing[1:])
        self._add("".join(token.text for token in self._waiting))
        self._waiting, self._closing = [], []
        if self._streams:
            self.writer.close_string()
        elif self._key is not None:
            self.writer.add(self._key, read_value("".join(self._text), self._types(self._key)))
        self._state = self._between

    def _cut_value(self) -> None:
        """The value never ended: a string keeps its text, anything else is dropped."""
        if self._streams:
            self.writer.close_string()
        self._state = self._between

    def _object(self, token: Token) -> bool:
        """An object of JSON instead of pairs; a marker is data only inside its strings."""
        if token.marker and not self._scanner.in_string:
            self._state = self._after_object
            return self._after_object(token)
        if token.marker in _CALL_CLOSING and self._at_end:
            return False
        if self._waiting or token.marker in _CALL_CLOSING:
            self._waiting.append(token)
        end = self._scanner.feed(token.text)
        self._text.append(token.text[:end])
        if self._scanner.complete:
            self._waiting = []
            self._state = self._after_object
            for key, value in read_object("".join(self._text)).items():
                self.writer.add(key, value)
        return True

    def _after_object(self, token: Token) -> bool:
        return token.marker not in _CALL_ENDS

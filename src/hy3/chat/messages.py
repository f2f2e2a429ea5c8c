"""Chat messages in the one form that templates understand.

Clients send content as a string, a list of parts or nothing, arguments as JSON text, reasoning
under either of two names, and ``developer`` for ``system``. Every way in passes through
``normalize``; the result shares nothing with the input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hy3.errors import InputError

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def normalize(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with string content, ``tool_calls`` whose arguments are objects, and reasoning
    under both names. Raises InputError with the place of what cannot be read."""
    if not messages:
        raise InputError("there is no message", hint="send at least one", where="messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    named = message.get("role")
    role = _ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        raise InputError(
            f"unknown role {named!r}",
            hint=f"use one of {', '.join(_ROLES)}",
            where=f"{where}.role",
        )
    form = {key: value for key, value in message.items() if value is not None}
    form["role"] = role
    form["content"] = _text(message.get("content"), f"{where}.content")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        form["reasoning_content"] = form["reasoning"] = _text(reasoning, f"{where}.reasoning")
    calls = form.pop("tool_calls", None)
    if calls:
        form["tool_calls"] = [
            _call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    return form


def _text(content: object, where: str) -> str:
    """A string as it is, the joined text of a list of parts, and nothing for None."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InputError(
            f"content must be text or a list of parts, found {type(content).__name__}",
            hint="send a string",
            where=where,
        )
    return "".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type") == "text":
        text = part.get("text")
        if isinstance(text, str):
            return text
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise InputError(
        f"a content part of type {kind!r} cannot be read",
        hint='this model reads text only: {"type": "text", "text": "..."}',
        where=where,
    )


def _call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if (
        not isinstance(call, Mapping)
        or not isinstance(function, Mapping)
        or not isinstance(function.get("name"), str)
    ):
        raise InputError(
            "a tool call needs a function with a name",
            hint='send {"function": {"name": "...", "arguments": "{...}"}}',
            where=where,
        )
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(arguments: object, where: str) -> dict[str, Any]:
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"the arguments are not valid JSON ({error})",
                hint="send back the arguments as the model wrote them",
                where=where,
            ) from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(
            f"the arguments must be a JSON object, found {type(value).__name__}",
            hint="send back the arguments as the model wrote them",
            where=where,
        )
    return value

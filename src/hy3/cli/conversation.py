"""``Conversation``: turns with an OpenAI-compatible endpoint, streamed; knows no terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hy3.bench.client import Endpoint, RequestFailure
from hy3.errors import EnvironmentFault, Hy3Error, InputError

Sink = Callable[[str], None]


@dataclass
class Reply:
    """One completion, gathered from its chunks."""

    model: str = ""
    reasoning: str = ""
    content: str = ""
    tool_calls: list[dict[str, str]] = field(default_factory=list)  # id, name, arguments
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None

    def as_message(self) -> dict[str, Any]:
        """The reply as the next request repeats it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or None}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in self.tool_calls
            ]
        return message


@dataclass
class Conversation:
    """Messages so far and what every request repeats; ``settings`` are fields of the request."""

    url: str
    api_key: str | None = None
    timeout_s: float = 600.0
    system: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.messages.clear()

    async def ask(self, new: list[dict[str, Any]], reasoning: Sink, content: Sink) -> Reply:
        """Send new messages; the sinks get the text of the reply as it comes.

        If it fails, the conversation stays as it was. Raises EnvironmentFault when the server
        cannot be reached or fails, InputError when it refuses the request.
        """
        sent = [*self.messages, *new]
        if self.system is not None:
            sent.insert(0, {"role": "system", "content": self.system})
        try:
            async with Endpoint(self.url, self.api_key, self.timeout_s) as endpoint:
                if "model" not in self.settings:
                    self.settings["model"] = await _first_model(endpoint)
                body = {**self.settings, "messages": sent, "stream": True}
                body["stream_options"] = {"include_usage": True}
                reply = Reply()
                async for event in endpoint.stream("/chat/completions", body):
                    _add_chunk(reply, event.data, reasoning, content)
        except RequestFailure as failure:
            raise _explain(failure, self.url) from failure
        self.messages += [*new, reply.as_message()]
        return reply


async def _first_model(endpoint: Endpoint) -> str:
    models = await endpoint.models()
    if not models:
        raise RequestFailure("malformed", "the server offers no model")
    return str(models[0]["id"])


def _add_chunk(reply: Reply, chunk: dict[str, Any], reasoning: Sink, content: Sink) -> None:
    reply.model = chunk.get("model") or reply.model
    reply.usage = chunk.get("usage") or reply.usage
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        # Servers name it one way or the other, or both ways with the same text.
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        if thought:
            reply.reasoning += thought
            reasoning(thought)
        if text := delta.get("content"):
            reply.content += text
            content(text)
        for piece in delta.get("tool_calls") or ():
            _add_call(reply.tool_calls, piece)
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason


def _add_call(calls: list[dict[str, str]], piece: dict[str, Any]) -> None:
    index = piece.get("index", 0)
    while len(calls) <= index:
        calls.append({"id": "", "name": "", "arguments": ""})
    function = piece.get("function") or {}
    calls[index]["id"] = piece.get("id") or calls[index]["id"]
    calls[index]["name"] += function.get("name") or ""
    calls[index]["arguments"] += function.get("arguments") or ""


def _explain(failure: RequestFailure, url: str) -> Hy3Error:
    if failure.reason == "refused":
        return EnvironmentFault(
            f"no server answers ({failure.detail})",
            hint="start one with `hy3 serve MODEL`, or give the URL of another",
            where=url,
        )
    if failure.reason in ("http_401", "http_403"):
        return InputError(
            f"the server wants an API key ({failure.detail})",
            hint="give --api-key-file, or set HY3_API_KEY",
            where=url,
        )
    if failure.reason.startswith("http_4") and failure.reason not in ("http_408", "http_429"):
        return InputError(
            f"the server refuses the request ({failure.reason}: {failure.detail})",
            hint="change what the server names; is this the URL of an OpenAI-compatible API?",
            where=url,
        )
    return EnvironmentFault(
        f"the server failed ({failure})",
        hint="see the server's log, then try again",
        where=url,
    )

"""Writes one chat generation, whole or in chunks, from the events of ``chat.stream``.

Both forms fold the same events, so they cannot differ: the whole message is the delta of all
events at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from hy3.chat.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from hy3.chat.stream import ChatStream
from hy3.server.generation import ChoiceStep, Generation
from hy3.server.logprobs import chat_logprobs
from hy3.server.schema import ChatBody
from hy3.server.served import ServedModel
from hy3.server.usage import encode_drafts, encode_usage


class ChatReply:
    """The answer to one request; each choice has a parser of its own."""

    def __init__(
        self,
        body: ChatBody,
        served: ServedModel,
        tools: list[dict[str, Any]] | None,
        thinking: bool,
        generation: Generation,
    ) -> None:
        self.body = body
        self.generation = generation
        self.token_bytes = served.tokenizer.token_bytes
        self.head = {
            "id": f"chatcmpl-{generation.id}",
            "created": generation.created,
            "model": served.name,
            "system_fingerprint": served.fingerprint,
        }
        self.parsers = [
            ChoiceParser(served, tools, thinking, body.parallel_tool_calls)
            for _ in generation.choices
        ]

    async def whole(self) -> dict[str, Any]:
        """The body of an answer that does not stream."""
        finished = await self.generation.collect()
        body: dict[str, Any] = {**self.head, "object": "chat.completion"}
        body["choices"] = [self._whole_choice(step) for step in finished]
        body |= self._cost()
        if self.body.return_token_ids:
            body["prompt_token_ids"] = list(self.generation.prompts[0])
        return body

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """The events of a stream. A step whose text is all held back gives a chunk only if the
        client asked for something else that it brings."""
        head: dict[str, Any] = {**self.head, "object": "chat.completion.chunk"}
        prompt_ids = list(self.generation.prompts[0]) if self.body.return_token_ids else None
        roles_due = set(range(len(self.parsers)))
        async for step in self.generation.steps():
            choice = self._chunk_choice(step)
            if choice is None:
                continue
            if step.index in roles_due:
                roles_due.remove(step.index)
                choice["delta"] = {"role": "assistant", **choice["delta"]}
            chunk = {**head, "choices": [choice]}
            if prompt_ids is not None:
                chunk["prompt_token_ids"], prompt_ids = prompt_ids, None
            if self.body.wants_running_usage:
                chunk["usage"] = self._usage()
            elif self.body.wants_usage:
                chunk["usage"] = None
            yield chunk
        if self.body.wants_usage:
            yield {**head, "choices": [], **self._cost()}

    def _chunk_choice(self, step: ChoiceStep) -> dict[str, Any] | None:
        parser = self.parsers[step.index]
        delta = fold(self._parse(parser, step))
        asked_for_tokens = self.body.return_token_ids or step.logprobs is not None
        if not delta and step.finish_reason is None and not asked_for_tokens:
            return None
        return {"index": step.index, "delta": delta, **self._rest(parser, step)}

    def _whole_choice(self, step: ChoiceStep) -> dict[str, Any]:
        parser = self.parsers[step.index]
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        message |= fold(self._parse(parser, step))
        for call in message.get("tool_calls") or ():
            del call["index"]
        return {"index": step.index, "message": message, **self._rest(parser, step)}

    def _parse(self, parser: ChoiceParser, step: ChoiceStep) -> list[Event]:
        events = parser.feed(step)
        if step.finish_reason is not None:
            self.generation.metrics.malformed_tool_calls.inc(parser.stream.malformed)
        return events

    def _rest(self, parser: ChoiceParser, step: ChoiceStep) -> dict[str, Any]:
        """What a choice carries beside its text, the same in both forms."""
        finished = step.finish_reason is not None
        rest: dict[str, Any] = {
            "logprobs": None,
            "finish_reason": parser.finish_reason() if finished else None,
            "stop_reason": step.stop_reason,
        }
        if step.logprobs is not None:
            content = chat_logprobs(step.logprobs, self.token_bytes)
            rest["logprobs"] = {"content": content, "refusal": None}
        if self.body.return_token_ids:
            rest["token_ids"] = list(step.token_ids)
        return rest

    def _cost(self) -> dict[str, Any]:
        return {"usage": self._usage(), **encode_drafts(self.generation.engine_usages)}

    def _usage(self) -> dict[str, Any]:
        reasoning_tokens = sum(parser.reasoning_tokens for parser in self.parsers)
        return encode_usage(self.generation.usage, reasoning_tokens)


class ChoiceParser:
    """One choice's way from text to events, and its count of reasoning tokens."""

    def __init__(
        self,
        served: ServedModel,
        tools: list[dict[str, Any]] | None,
        thinking: bool,
        parallel_tool_calls: bool,
    ) -> None:
        self.stream = ChatStream(served.markers, tools, thinking)
        self.parallel_tool_calls = parallel_tool_calls
        self.reasoning_tokens = 0
        self._thinking = thinking
        self._think_open = served.tokenizer.token_id(served.markers.think_open)
        self._think_close = served.tokenizer.token_id(served.markers.think_close)

    def feed(self, step: ChoiceStep) -> list[Event]:
        """The events of one step."""
        self._count(step.token_ids)
        events = self.stream.feed(step.text)
        if step.finish_reason is not None:
            events += self.stream.finish(step.finish_reason)
        if self.parallel_tool_calls:
            return events
        return [event for event in events if getattr(event, "index", 0) == 0]

    def finish_reason(self) -> str:
        """Why the choice ended, in OpenAI's words."""
        return self.stream.finish_reason()

    def _count(self, token_ids: Iterable[int]) -> None:
        """A token is reasoning while the block is open, its closing marker included."""
        for token_id in token_ids:
            self._thinking = self._thinking or token_id == self._think_open
            self.reasoning_tokens += self._thinking
            if token_id == self._think_close:
                self._thinking = False


def fold(events: Iterable[Event]) -> dict[str, Any]:
    """One delta for any number of events; fields that nothing was said about are left out."""
    delta: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        match event:
            case ContentDelta(text):
                delta["content"] = delta.get("content", "") + text
            case ReasoningDelta(text):
                delta["reasoning"] = delta.get("reasoning", "") + text
                delta["reasoning_content"] = delta["reasoning"]
            case ToolCallStart(index, call_id, name):
                function = {"name": name, "arguments": ""}
                calls[index] = {
                    "index": index,
                    "id": call_id,
                    "type": "function",
                    "function": function,
                }
            case ToolCallArguments(index, fragment):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += fragment
    if calls:
        delta["tool_calls"] = list(calls.values())
    return delta

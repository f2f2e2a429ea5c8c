"""POST /v1/completions: a prompt as text or token ids, and the text that follows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from hy3.server.errors import bad_request
from hy3.server.generation import ChoiceStep, Generation, Generator
from hy3.server.logprobs import completion_logprobs
from hy3.server.sampling import check_sampling, check_token_ids, output_budget, sampling_params
from hy3.server.schema import CompletionBody
from hy3.server.served import ServedModel
from hy3.server.sse import EventStream, unless_gone
from hy3.server.usage import encode_drafts, encode_usage


def completion_routes(served: ServedModel, generator: Generator) -> APIRouter:
    """The endpoint, for one model."""
    router = APIRouter()

    @router.post("/v1/completions")
    async def create_completion(body: CompletionBody, http: Request) -> Response:
        check_body(body, served)
        prompts = await asyncio.to_thread(encode_prompts, body, served)
        longest = max(map(len, prompts))
        budget = output_budget(longest, body.max_tokens, generator.backend.max_context)
        params = sampling_params(body, served.defaults, budget, body.logprobs)
        generation = await generator.start(prompts, params, body.n, body.stops)
        reply = CompletionReply(body, served, generation)
        if body.stream:
            keep_alive = generator.limits.keep_alive_seconds
            return EventStream(reply.chunks(), generation.close, keep_alive)
        try:
            return JSONResponse(await unless_gone(http.receive, reply.whole()))
        finally:
            generation.close()

    return router


def check_body(body: CompletionBody, served: ServedModel) -> None:
    """Refuse what this endpoint cannot do, rather than ignore it."""
    check_sampling(body, served)
    if body.suffix:
        raise bad_request("suffix is not supported: the model does not fill gaps", "suffix")
    if body.best_of not in (None, body.n):
        raise bad_request("best_of must equal n", "best_of")
    if body.echo and body.logprobs is not None:
        raise bad_request("echo does not go with logprobs", "echo")


def encode_prompts(body: CompletionBody, served: ServedModel) -> list[list[int]]:
    """The prompts as token ids; text is encoded as it is, with no template around it."""
    encoded = [
        served.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        for prompt in body.prompts
    ]
    if not encoded or not all(encoded):
        raise bad_request("a prompt is empty", "prompt")
    for token_ids in encoded:
        check_token_ids("prompt", token_ids, served.tokenizer.vocab_size)
    return encoded


class CompletionReply:
    """Writes one generation, whole or in chunks."""

    def __init__(self, body: CompletionBody, served: ServedModel, generation: Generation) -> None:
        self.body = body
        self.generation = generation
        self.tokenizer = served.tokenizer
        self.head = {
            "id": f"cmpl-{generation.id}",
            "object": "text_completion",
            "created": generation.created,
            "model": served.name,
            "system_fingerprint": served.fingerprint,
        }
        # Where the next text of each choice begins, in characters.
        self.offsets = [0] * len(generation.choices)

    async def whole(self) -> dict[str, Any]:
        """The body of an answer that does not stream."""
        finished = await self.generation.collect()
        choices = [self._choice(step, first=True) for step in finished]
        return {**self.head, "choices": choices, **self._cost()}

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """The events of a stream; a step whose text is still held back may have an empty text."""
        started: set[int] = set()
        async for step in self.generation.steps():
            choice = self._choice(step, first=step.index not in started)
            started.add(step.index)
            chunk = {**self.head, "choices": [choice]}
            if self.body.wants_running_usage:
                chunk["usage"] = encode_usage(self.generation.usage)
            elif self.body.wants_usage:
                chunk["usage"] = None
            yield chunk
        if self.body.wants_usage:
            yield {**self.head, "choices": [], **self._cost()}

    def _cost(self) -> dict[str, Any]:
        drafts = encode_drafts(self.generation.engine_usages)
        return {"usage": encode_usage(self.generation.usage), **drafts}

    def _choice(self, step: ChoiceStep, first: bool) -> dict[str, Any]:
        prompt_ids = self.generation.choices[step.index].request.prompt_ids
        echoed = self.tokenizer.decode(prompt_ids) if first and self.body.echo else ""
        choice: dict[str, Any] = {
            "index": step.index,
            "text": echoed + step.text,
            "logprobs": None,
            "finish_reason": step.finish_reason,
            "stop_reason": step.stop_reason,
        }
        if step.logprobs is not None:
            offset = self.offsets[step.index]
            choice["logprobs"] = completion_logprobs(
                step.logprobs, self.tokenizer.token_bytes, offset
            )
            self.offsets[step.index] += sum(map(len, choice["logprobs"]["tokens"]))
        if self.body.return_token_ids:
            choice["token_ids"] = list(step.token_ids)
            if first:
                choice["prompt_token_ids"] = list(prompt_ids)
        return choice

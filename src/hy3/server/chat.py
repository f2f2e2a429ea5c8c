"""POST /v1/chat/completions, top to bottom: body, render, encode, submit, ChatStream, events."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from hy3.chat.template import resolve_effort
from hy3.server.chat_reply import ChatReply
from hy3.server.generation import Generator
from hy3.server.grammar import output_grammar
from hy3.server.sampling import check_sampling, output_budget, sampling_params
from hy3.server.schema import ChatBody
from hy3.server.served import ServedModel
from hy3.server.sse import EventStream, unless_gone


def chat_routes(served: ServedModel, generator: Generator) -> APIRouter:
    """The endpoint, for one model."""
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def create_chat_completion(body: ChatBody, http: Request) -> Response:
        check_sampling(body, served)
        tools = offered_tools(body)
        # In a thread, because a long prompt takes long enough to hold up everyone's tokens.
        prompt, prompt_ids = await asyncio.to_thread(encode_prompt, body, tools, served)
        budget = output_budget(len(prompt_ids), body.wanted_tokens, generator.backend.max_context)
        thinking = prompt.endswith(served.markers.think_open)
        grammar = output_grammar(body, tools, served.markers, thinking)
        params = sampling_params(body, served.defaults, budget, body.wanted_logprobs, grammar)
        generation = await generator.start([prompt_ids], params, body.n, body.stops)
        reply = ChatReply(body, served, tools, thinking, generation)
        if body.stream:
            keep_alive = generator.limits.keep_alive_seconds
            return EventStream(reply.chunks(), generation.close, keep_alive)
        try:
            return JSONResponse(await unless_gone(http.receive, reply.whole()))
        finally:
            generation.close()

    return router


def offered_tools(body: ChatBody) -> list[dict[str, Any]] | None:
    """The tools as the template and the parser take them; with ``tool_choice`` none, none."""
    if not body.tools or body.tool_choice == "none":
        return None
    return body.tools


def encode_prompt(
    body: ChatBody, tools: list[dict[str, Any]] | None, served: ServedModel
) -> tuple[str, list[int]]:
    """The prompt as text and as token ids."""
    prompt = render(body, tools, served)
    return prompt, served.tokenizer.encode(prompt)


def render(body: ChatBody, tools: list[dict[str, Any]] | None, served: ServedModel) -> str:
    """The prompt by the checkpoint's own template, at the effort that the request settles on."""
    effort, extra = resolve_effort(
        body.reasoning_effort, body.chat_template_kwargs, served.reasoning_effort
    )
    return served.template.render(body.messages, tools, effort, **extra)

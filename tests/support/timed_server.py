"""An endpoint of known timing: real sockets, several tokens a chunk, faults on request.

The schedule of each reply is given, so the right figures are known; the server also records when it
really wrote, so a test on a busy machine can compare with that instead of the wish.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

# Lengths differ, as those of real tokens do, so spreading by text is not trivially exact.
TOKEN_TEXTS = ("a ", "of ", "tensor ", "quantization ", "x", "next ")


@dataclass(frozen=True)
class Script:
    """A reply: tokens of each chunk, seconds before it, and how tokens may be counted."""

    tokens: tuple[int, ...] = (1, 3, 2, 4, 1, 3, 2, 4, 1, 3, 2, 4)
    first_delay_s: float = 0.05
    delay_s: float = 0.02
    counting: str = "ids"  # "ids", "continuous", "final" or "none"
    histogram: Any = None
    fault: str | None = None  # "429", "error", "cut" or "malformed", after half the chunks
    extra: dict[str, Any] | None = None  # sent as it is before [DONE]

    @property
    def decode_tokens(self) -> int:
        return sum(self.tokens[1:])


@dataclass
class TimedServer:
    """Serves ``script`` for every request; ``scripts`` overrides it for the first ones."""

    script: Script = field(default_factory=Script)
    scripts: list[Script] = field(default_factory=list)
    url: str = ""
    writes: list[list[tuple[float, int]]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    drafts: int = 0
    accepted: list[int] = field(default_factory=lambda: [0, 0])

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "timed", "object": "model"}]})

    async def metrics(self, request: web.Request) -> web.Response:
        lines = ["# TYPE hy3:spec_decode_num_drafts counter"]
        lines.append(f'hy3:spec_decode_num_drafts_total{{model_name="timed"}} {self.drafts}.0')
        lines += [
            f'hy3:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {count}.0'
            for i, count in enumerate(self.accepted)
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        probe = body["max_tokens"] == 1
        script = self.scripts.pop(0) if self.scripts and not probe else self.script
        if script.fault == "429" and not probe:
            error = {"message": "queue full", "type": "rate_limit", "code": "queue_full"}
            return web.json_response({"error": error}, status=429)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await self._reply(response, script, body, probe)
        return response

    async def _reply(
        self, response: web.StreamResponse, script: Script, body: dict[str, Any], probe: bool
    ) -> None:
        chat = "messages" in body
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        usage = {"prompt_tokens": 7 + round(len(prompt) / 2), "completion_tokens": 0}
        sizes = (1,) if probe else script.tokens
        writes: list[tuple[float, int]] = []
        self.writes.append(writes)
        due, sent = time.perf_counter() + script.first_delay_s, 0
        if chat:
            await _send(response, _chunk(chat, "", finish=None))
        for index, size in enumerate(sizes):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due += script.delay_s
            if script.fault and not probe and index == len(sizes) // 2:
                await _break(response, script.fault)
                return
            texts = [TOKEN_TEXTS[(sent + i) % len(TOKEN_TEXTS)] for i in range(size)]
            sent += size
            usage["completion_tokens"] = sent
            last = index == len(sizes) - 1
            chunk = _chunk(chat, "".join(texts), finish="length" if last else None)
            if script.counting == "ids":
                chunk["choices"][0]["token_ids"] = list(range(size))
            if script.counting == "continuous":
                chunk["usage"] = dict(usage)
            await _send(response, chunk)
            writes.append((time.perf_counter(), size))
        if script.counting != "none" or probe:
            final: dict[str, Any] = {"choices": [], "usage": dict(usage)}
            if script.histogram is not None:
                stats = {"acceptance_histogram": script.histogram}
                final["metrics"] = {"speculative_decoding": stats}
            await _send(response, final)
        self.drafts += len(sizes)
        self.accepted[0] += sum(size > 1 for size in sizes)
        self.accepted[1] += sum(size > 2 for size in sizes)
        if script.extra is not None:
            await _send(response, script.extra)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()


def _chunk(chat: bool, text: str, finish: str | None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    if chat:
        choice["delta"] = {"content": text} if text else {"role": "assistant", "content": ""}
    else:
        choice["text"] = text
    return {"id": "r", "model": "timed", "choices": [choice]}


async def _send(response: web.StreamResponse, data: dict[str, Any]) -> None:
    await response.write(b": keep-alive\n\ndata: " + json.dumps(data).encode() + b"\n\n")


async def _break(response: web.StreamResponse, fault: str) -> None:
    if fault == "error":
        await _send(response, {"error": {"message": "engine died", "type": "server_error"}})
    elif fault == "malformed":
        await response.write(b"data: {not json\n\n")
    elif fault == "cut":
        await response.write_eof()
    elif fault == "reset":
        assert response._req is not None and response._req.transport is not None
        response._req.transport.abort()


@contextmanager
def timed_server(
    script: Script | None = None, scripts: list[Script] | None = None
) -> Iterator[TimedServer]:
    """A running server on a free port of 127.0.0.1, in a thread of its own."""
    server = TimedServer(script or Script(), list(scripts or []))
    loop = asyncio.new_event_loop()
    started = threading.Event()

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/v1/models", server.models)
        app.router.add_get("/metrics", server.metrics)
        app.router.add_post("/v1/chat/completions", server.generate)
        app.router.add_post("/v1/completions", server.generate)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        started.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)

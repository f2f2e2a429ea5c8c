"""An endpoint on a real socket that streams given deltas and keeps what it was sent."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Delta = dict[str, Any]


@dataclass
class ChatServer:
    """Answers the n-th request with ``replies[n]``: deltas, or a status and an error message."""

    replies: list[list[Delta] | tuple[int, str]]
    finish: str = "stop"
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "first"}, {"id": "second"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        reply = self.replies[len(self.bodies) - 1]
        if isinstance(reply, tuple):
            status, text = reply
            return web.json_response({"error": {"message": text}}, status=status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for delta in reply:
            await self._send(response, {"choices": [{"index": 0, "delta": delta}]})
        last = {"index": 0, "delta": {}, "finish_reason": self.finish}
        await self._send(response, {"choices": [last]})
        await self._send(response, {"choices": [], "usage": {"completion_tokens": 3}})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _send(self, response: web.StreamResponse, chunk: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps({"model": "first", **chunk}).encode() + b"\n\n")


@contextmanager
def chat_server(
    *replies: list[Delta] | tuple[int, str], finish: str = "stop"
) -> Iterator[ChatServer]:
    """Serve in a thread until the block ends."""
    server = ChatServer(list(replies), finish)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> web.AppRunner:
        application = web.Application()
        application.router.add_get("/v1/models", server.models)
        application.router.add_post("/v1/chat/completions", server.chat)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()

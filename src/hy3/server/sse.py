"""Server-sent events: the wire form, the keep-alive, and the end of a client that went away.

Chunks are plain dicts written by ``json``; no model class stands in the path of a token.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hy3.server.errors import ApiError, as_api_error

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def encode_event(data: dict[str, Any]) -> bytes:
    """One event; a newline inside a string is escaped by JSON, so one line is enough."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


class ClientGone(ApiError):
    """The client closed the connection: no failure, and nobody reads the answer; 499 as in logs of
    web servers."""

    def __init__(self) -> None:
        super().__init__(499, "client_gone", "the client closed the connection")


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """The result of ``work``; as soon as the client goes, cancel it and raise ClientGone."""

    async def wait_until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(wait_until_gone())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


class EventStream(Response):
    """Sends events as they come, a comment when none came for a while, then ``[DONE]``.

    ``close`` is called exactly once, whether the stream ended, failed or lost its client. An error
    after the first byte cannot change the status any more: it is sent as an event, and the stream
    ends without ``[DONE]``.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[dict[str, Any]],
        close: Callable[[], None],
        keep_alive_seconds: float,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._keep_alive_seconds = keep_alive_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the stream to its end or to the client's."""
        try:
            await unless_gone(receive, self._run(send))
        except ClientGone:
            pass
        finally:
            self._close()

    async def _run(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async for data in self._encoded():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _encoded(self) -> AsyncIterator[bytes]:
        try:
            async for event in self._with_keep_alive():
                yield KEEP_ALIVE if event is None else encode_event(event)
        except Exception as error:
            yield encode_event(as_api_error(error).body())
            return
        yield DONE

    async def _with_keep_alive(self) -> AsyncIterator[dict[str, Any] | None]:
        """The events, with None for each silence of ``keep_alive_seconds``."""
        while True:
            coming = asyncio.ensure_future(anext(self._events, None))
            try:
                while not (await asyncio.wait((coming,), timeout=self._keep_alive_seconds))[0]:
                    yield None
                event = coming.result()
            finally:
                coming.cancel()
            if event is None:
                return
            yield event

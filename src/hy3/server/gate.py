"""The door of every HTTP request: its id, its key, readiness, body size, time, one log line.

Plain ASGI, so that nothing of a stream is buffered. Headers are never logged.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hy3.server.backend import Status
from hy3.server.errors import ApiError, as_api_error
from hy3.server.keys import ApiKeys
from hy3.server.limits import Limits

logger = logging.getLogger("hy3.server")

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
# A stream ends itself with an error event at the limit; this is for clients that stall.
_STALL_SECONDS = 5.0


class Gate:
    """Wraps the application; every answer carries ``x-request-id``, the client's or a new one."""

    def __init__(
        self, app: ASGIApp, limits: Limits, keys: ApiKeys, status: Callable[[], Status]
    ) -> None:
        self.app = app
        self.limits = limits
        self.keys = keys
        self.status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens inside."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.monotonic()
        answer = _Answer(send, _request_id(scope))
        try:
            async with asyncio.timeout(self.limits.request_seconds + _STALL_SECONDS):
                self._check(scope)
                await self.app(scope, self._bounded(receive), answer.send)
        except TimeoutError:
            await answer.fail(timed_out(self.limits), scope, receive)
        except Exception as error:
            await answer.fail(as_api_error(error), scope, receive)
        finally:
            logger.info(
                "%s %s %s %d %.0f ms",
                answer.request_id.decode(),
                scope["method"],
                scope["path"],
                answer.status,
                (time.monotonic() - started) * 1000,
            )

    def _check(self, scope: Scope) -> None:
        """The key first, so that strangers learn nothing; then whether there is an engine."""
        path = scope["path"]
        if path == "/health":
            return
        if self.keys and not self.keys.accepts(_header(scope, b"authorization")):
            raise ApiError(
                401,
                "invalid_api_key",
                "no valid API key; send it as Authorization: Bearer KEY",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if path.startswith("/v1/") and self.status() != "ready":
            raise not_ready(self.status())
        length = _header(scope, b"content-length")
        if length.isdigit() and int(length) > self.limits.max_body_bytes:
            raise self._too_large()

    def _bounded(self, receive: Receive) -> Receive:
        """Count the body as it comes, for clients that announce no length."""
        received_bytes = 0

        async def bounded() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self.limits.max_body_bytes:
                raise self._too_large()
            return message

        return bounded

    def _too_large(self) -> ApiError:
        return ApiError(
            413, "body_too_large", f"the body exceeds {self.limits.max_body_bytes} bytes"
        )


class _Answer:
    """The sending side of one request: adds the id, and remembers whether an answer began."""

    def __init__(self, send: Send, request_id: bytes) -> None:
        self._send = send
        self.request_id = request_id
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self.request_id)]
            message = {**message, "headers": headers}
        await self._send(message)

    async def fail(self, error: ApiError, scope: Scope, receive: Receive) -> None:
        """Send the error, unless an answer is under way: then the connection is all there is."""
        if self.status == 0:
            await error.response()(scope, receive, self.send)


def not_ready(status: Status) -> ApiError:
    """A 503: come back when the engine is there."""
    if status == "failed":
        return ApiError(503, "engine_failure", "the engine has failed; the server is stopping")
    headers = {"Retry-After": "5"}
    return ApiError(503, "model_loading", "the model is still loading", headers=headers)


def timed_out(limits: Limits) -> ApiError:
    """A 408 that clients do not repeat by themselves: the same request takes as long again."""
    return ApiError(
        408,
        "request_timeout",
        f"the request took longer than {limits.request_seconds:g} s",
        headers={"x-should-retry": "false"},
    )


def _request_id(scope: Scope) -> bytes:
    given = _header(scope, b"x-request-id")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex.encode()


def _header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")

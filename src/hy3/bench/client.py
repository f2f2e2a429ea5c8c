"""A streaming client for OpenAI-compatible endpoints: when bytes arrived, and why it failed.

It decodes server-sent events and nothing more: what a chunk means is its caller's business
(``trace`` for measuring, ``hy3 chat`` for people). Times are ``time.perf_counter`` seconds, taken
once per network read, before anything is parsed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from hy3.errors import InputError

CONNECT_TIMEOUT_S = 10.0
_TEXTS = ("content", "reasoning", "reasoning_content", "text", "finish_reason")
_CALL_TEXTS = ("id", "name", "arguments")
_MAX_CALLS = 1024  # of one message; a larger index is no index


class RequestFailure(Exception):
    """A request that did not end as promised.

    ``reason`` is one of: ``refused`` (no connection), ``timeout``, ``http_<status>``,
    ``error_event`` (the server reported an error in mid-stream), ``cut`` (the stream ended before
    ``[DONE]``), ``malformed`` (an event that is not a JSON object), ``no_usage`` (the server told
    neither token ids nor usage, so its tokens cannot be counted).
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class StreamEvent:
    """One JSON event of a stream and the time of the read that completed it."""

    at_s: float
    data: dict[str, Any]


class SseDecoder:
    """Server-sent events out of byte pieces of any size; only the ``data`` field matters here."""

    def __init__(self) -> None:
        self._pending = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[str]:
        """The payloads that this piece completes."""
        *lines, self._pending = (self._pending + piece).split(b"\n")
        payloads = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                payloads.append(b"\n".join(self._data).decode("utf-8", "replace"))
                self._data.clear()
        return payloads


class Endpoint:
    """One server; an async context manager that holds its connections.

    Args:
        url: with or without the final ``/v1``.
        timeout_s: bound on a whole request, streaming included.
    """

    def __init__(self, url: str, api_key: str | None = None, timeout_s: float = 600.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InputError(
                "is not an http(s) URL", hint="for example http://127.0.0.1:8000/v1", where=url
            )
        base = url.rstrip("/")
        self.base_url = base if parts.path.strip("/") else f"{base}/v1"
        self.root_url = self.base_url.removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S),
        )

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def get_text(self, url: str) -> str:
        """The body of a GET; raises RequestFailure."""
        try:
            async with self._session.get(url) as response:
                await _raise_for_status(response)
                return await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _failure(error) from error

    async def models(self) -> list[dict[str, Any]]:
        """The entries of ``/models``."""
        text = await self.get_text(f"{self.base_url}/models")
        models = _objects(_json_object(text).get("data"))
        if models is None or not all(isinstance(model.get("id"), str) for model in models):
            raise RequestFailure("malformed", f"not a list of models: {text[:200]!r}")
        return models

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A request that is answered by one JSON object."""
        try:
            async with self._session.post(self.base_url + path, json=body) as response:
                await _raise_for_status(response)
                return _json_object(await response.text())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _failure(error) from error

    async def stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[StreamEvent]:
        """The events of a streamed request up to ``[DONE]``; raises RequestFailure.

        Args:
            path: below the base URL, for example ``/chat/completions``.
            body: sent as it is; the caller sets ``stream``.
        """
        decoder = SseDecoder()
        try:
            async with self._session.post(self.base_url + path, json=body) as response:
                await _raise_for_status(response)
                async for piece in response.content.iter_any():
                    at_s = time.perf_counter()
                    for payload in decoder.feed(piece):
                        if payload == "[DONE]":
                            return
                        yield StreamEvent(at_s, _event(payload))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _failure(error) from error
        raise RequestFailure("cut", "the stream ended before [DONE]")


def _event(payload: str) -> dict[str, Any]:
    data = _json_object(payload)
    if data.get("error"):
        raise RequestFailure("error_event", _error_message(data))
    if not _is_chunk(data):
        raise RequestFailure("malformed", f"not a completion chunk: {payload[:200]!r}")
    return data


def _is_chunk(data: dict[str, Any]) -> bool:
    """Whether all that is read of a chunk has the type that OpenAI's API gives it, or is null."""
    choices = _objects(data.get("choices"))
    deltas = _objects([choice.get("delta") or {} for choice in choices or ()])
    if choices is None or deltas is None or not _is_usage(data.get("usage") or {}):
        return False
    calls = [_objects(delta.get("tool_calls")) for delta in deltas]
    pieces = [piece for group in calls for piece in group or ()]
    functions = _objects([piece.get("function") or {} for piece in pieces])
    if None in calls or functions is None:
        return False
    if not all(piece.get("index", 0) in range(_MAX_CALLS) for piece in pieces):
        return False
    texts = [item.get(name) for item in (*deltas, *choices) for name in _TEXTS]
    texts += [item.get(name) for item in (*functions, *pieces) for name in _CALL_TEXTS]
    return all(text is None or isinstance(text, str) for text in texts)


def _is_usage(usage: Any) -> bool:
    if not isinstance(usage, dict):
        return False
    counts = [usage.get(name) or 0 for name in ("prompt_tokens", "completion_tokens")]
    details = usage.get("prompt_tokens_details") or {}
    return all(isinstance(count, int) for count in counts) and isinstance(details, dict)


def _objects(value: Any) -> list[dict[str, Any]] | None:
    """A list of objects, empty for null; None if it is something else."""
    if value is None:
        return []
    fits = isinstance(value, list) and all(isinstance(item, dict) for item in value)
    return value if fits else None


def _json_object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise RequestFailure("malformed", f"not JSON: {text[:200]!r}") from error
    if not isinstance(data, dict):
        raise RequestFailure("malformed", f"not a JSON object: {text[:200]!r}")
    return data


async def _raise_for_status(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    text = await response.text()
    try:
        detail = _error_message(_json_object(text))
    except RequestFailure:
        detail = text[:200]
    raise RequestFailure(f"http_{response.status}", detail)


def _error_message(body: dict[str, Any]) -> str:
    error = body.get("error", body)
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def _failure(error: Exception) -> RequestFailure:
    detail = str(error) or type(error).__name__
    if isinstance(error, asyncio.TimeoutError):  # aiohttp's connection timeouts are among these
        return RequestFailure("timeout", detail)
    if isinstance(error, aiohttp.ClientConnectorError):
        return RequestFailure("refused", detail)
    return RequestFailure("cut", detail)

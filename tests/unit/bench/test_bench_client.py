"""The streaming client against real sockets: events, times, and failures by their reason."""

from __future__ import annotations

import asyncio
import json
import socket
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hy3.bench.client import Endpoint, RequestFailure, SseDecoder
from hy3.bench.trace import RequestTrace, measure
from hy3.errors import InputError
from support.timed_server import Script, TimedServer, timed_server

BODY = {"model": "timed", "max_tokens": 30, "messages": [{"role": "user", "content": "hi"}]}


def ask(server: TimedServer | str, timeout_s: float = 30.0) -> RequestTrace:
    async def run() -> RequestTrace:
        url = server if isinstance(server, str) else server.url
        async with Endpoint(url, timeout_s=timeout_s) as endpoint:
            return await measure(endpoint, "/chat/completions", BODY)

    return asyncio.run(run())


payloads = st.lists(
    st.dictionaries(st.text(max_size=5), st.text(max_size=8), max_size=3).map(
        lambda data: json.dumps(data, ensure_ascii=False)
    ),
    max_size=6,
)


@given(payloads, st.data(), st.sampled_from(["\n", "\r\n"]))
def test_events_do_not_depend_on_how_the_bytes_are_cut(
    events: list[str], data: st.DataObject, newline: str
) -> None:
    wire = "".join(f": ping{newline}{newline}data: {e}{newline}{newline}" for e in events).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    decoder = SseDecoder()
    bounds = [0, *cuts, len(wire)]
    found = [
        payload for start, end in pairwise(bounds) for payload in decoder.feed(wire[start:end])
    ]
    assert found == events


def test_data_lines_of_one_event_are_joined() -> None:
    assert SseDecoder().feed(b"event: x\ndata: [1,\ndata: 2]\n\n") == ["[1,\n2]"]


@pytest.mark.parametrize(
    ("fault", "reason", "detail"),
    [
        ("429", "http_429", "queue full"),
        ("error", "error_event", "engine died"),
        ("cut", "cut", "before [DONE]"),
        ("reset", "cut", ""),
        ("malformed", "malformed", "{not json"),
    ],
)
def test_failures_are_told_apart(fault: str, reason: str, detail: str) -> None:
    with timed_server(Script(fault=fault, delay_s=0.001)) as server:
        trace = ask(server)
    assert trace.failure == reason
    assert detail in trace.detail
    # What arrived before the failure is kept: six chunks of 1, 3, 2, 4, 1, 3 tokens.
    assert trace.output_tokens == (0 if fault == "429" else 14)


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": 5},
        {"choices": [1]},
        {"choices": [{"delta": "x"}]},
        {"choices": [{"delta": {"content": 5}}]},
        {"choices": [{"text": {}}]},
        {"choices": [{"delta": {"tool_calls": [1]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 10**9}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": {}}}]}}]},
        {"usage": [1]},
        {"usage": {"completion_tokens": "7"}},
    ],
)
def test_a_chunk_of_other_types_is_malformed(chunk: dict) -> None:
    with timed_server(Script(extra=chunk, delay_s=0.001)) as server:
        trace = ask(server)
    assert trace.failure == "malformed"
    assert "not a completion chunk" in trace.detail


def test_null_stands_for_what_is_not_there() -> None:
    chunk = {"choices": None, "usage": None}
    with timed_server(Script(extra=chunk, delay_s=0.001)) as server:
        assert ask(server).failure is None


def test_a_refused_connection() -> None:
    with socket.socket() as holder:  # bound, never listening: connecting is refused
        holder.bind(("127.0.0.1", 0))
        trace = ask(f"http://127.0.0.1:{holder.getsockname()[1]}")
    assert (trace.failure, trace.output_tokens) == ("refused", 0)


def test_a_slow_server_is_a_timeout() -> None:
    with timed_server(Script(first_delay_s=1.0)) as server:
        assert ask(server, timeout_s=0.2).failure == "timeout"


def test_no_usage_is_a_failure_and_not_a_guess() -> None:
    with timed_server(Script(counting="none", delay_s=0.001)) as server:
        trace = ask(server)
    assert trace.failure == "no_usage"
    assert trace.output_tokens == 0


@pytest.mark.parametrize(
    ("url", "base", "root"),
    [
        ("http://host:1", "http://host:1/v1", "http://host:1"),
        ("http://host:1/v1/", "http://host:1/v1", "http://host:1"),
        ("https://host/llm/v1", "https://host/llm/v1", "https://host/llm"),
    ],
)
def test_urls(url: str, base: str, root: str) -> None:
    async def read() -> tuple[str, str]:
        async with Endpoint(url) as endpoint:
            return endpoint.base_url, endpoint.root_url

    assert asyncio.run(read()) == (base, root)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "file:///x", "http://"])
def test_not_a_url(url: str) -> None:
    async def make() -> None:
        Endpoint(url)

    with pytest.raises(InputError, match="not an http"):
        asyncio.run(make())


def test_get_and_post_fail_by_reason_too() -> None:
    async def run(url: str) -> list[str]:
        reasons = []
        async with Endpoint(url) as endpoint:
            for attempt in (
                endpoint.get_text(f"{endpoint.base_url}/nothing"),
                endpoint.post("/x", {}),
            ):
                with pytest.raises(RequestFailure) as caught:
                    await attempt
                reasons.append(caught.value.reason)
        return reasons

    with timed_server() as server:
        assert asyncio.run(run(server.url)) == ["http_404", "http_404"]

"""Counting tokens: the server of known timing sends 1 to 4 of them per chunk."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hy3.bench.client import Endpoint, StreamEvent
from hy3.bench.metrics import tpot_s
from hy3.bench.trace import Chunk, RequestTrace, build_trace, count_tokens, measure
from support.timed_server import Script, timed_server


def ask(script: Script, api: str = "chat") -> tuple[RequestTrace, list[tuple[float, int]]]:
    prompt: dict[str, Any] = {"prompt": "four"}
    if api == "chat":
        prompt = {"messages": [{"role": "user", "content": "four"}]}

    async def run(url: str) -> RequestTrace:
        async with Endpoint(url) as endpoint:
            path = "/chat/completions" if api == "chat" else "/completions"
            return await measure(endpoint, path, {"model": "timed", "max_tokens": 30, **prompt})

    with timed_server(script) as server:
        trace = asyncio.run(run(server.url))
    return trace, server.writes[0]


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize(
    ("counting", "method"),
    [("ids", "token_ids"), ("continuous", "continuous_usage"), ("final", "final_usage")],
)
def test_tokens_are_counted_not_chunks(counting: str, method: str, api: str) -> None:
    script = Script(counting=counting)
    trace, writes = ask(script, api)
    assert trace.ok, trace.detail
    assert trace.counted_by == method
    assert trace.output_tokens == trace.usage_tokens == sum(script.tokens) == 30
    assert trace.prompt_tokens == 7 + 2
    assert trace.finish_reason == "length"
    assert trace.reads[0].at_s - trace.started_s >= script.first_delay_s
    if counting != "final":
        by_time = [read.tokens for read in trace.reads]
        assert sum(by_time) == 30 and (len(by_time) < 12 or tuple(by_time) == script.tokens)

    # The rate must agree with what the server really wrote; one that counts chunks cannot.
    wrote_s = writes[-1][0] - writes[0][0]
    true_rate = script.decode_tokens / wrote_s
    rate = 1 / tpot_s(trace)
    assert rate == pytest.approx(true_rate, rel=0.15)
    chunk_rate = (len(script.tokens) - 1) / wrote_s
    assert chunk_rate < 0.5 * rate


def event(at_s: float, text: str = "", **more: Any) -> StreamEvent:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    data = {"choices": [choice], **more}
    choice |= data.pop("choice", {})
    return StreamEvent(at_s, data)


def test_events_of_one_read_are_one_read() -> None:
    events = [
        event(1.0, "a", choice={"token_ids": [5]}),
        event(1.0, "b", choice={"token_ids": [6, 7]}),
        event(1.5, "c", choice={"token_ids": [8], "finish_reason": "stop"}),
        StreamEvent(1.5, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}),
    ]
    trace = build_trace(events, 0.5, 1.6)
    assert [(read.at_s, read.tokens) for read in trace.reads] == [(1.0, 3), (1.5, 1)]
    assert tpot_s(trace) == 0.5


def test_reasoning_and_tool_arguments_count_but_only_answers_are_visible() -> None:
    call = {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}
    events = [
        event(1.0, choice={"delta": {"reasoning": "hm", "reasoning_content": "hm"}}),
        event(2.0, choice={"delta": call}),
        StreamEvent(2.0, {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 6}}),
    ]
    trace = build_trace(events, 0.0, 2.0)
    assert [(r.tokens, r.visible) for r in trace.reads] == [(2, False), (4, True)]


def test_usage_in_the_last_chunk_alone_is_not_running_usage() -> None:
    events = [event(1.0, "aaaa"), event(2.0, "bbbb", usage={"completion_tokens": 8})]
    trace = build_trace(events, 0.0, 2.0)
    assert trace.counted_by == "final_usage"
    assert [read.tokens for read in trace.reads] == [4, 4]


@pytest.mark.parametrize("histogram", [[3, 2, 1], {"0": 3, "1": 2, "2": 1}])
@pytest.mark.parametrize("place", ["metrics", "choice"])
def test_acceptance_histogram_is_found(histogram: Any, place: str) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    stats = {"acceptance_histogram": histogram}
    last = event(1.0, "a", usage=usage)
    if place == "choice":
        last = event(1.0, "a", usage=usage, choice={"speculative_decoding_stats": stats})
    else:
        last.data["metrics"] = {"speculative_decoding": stats}
    assert build_trace([last], 0.0, 1.0).draft_histogram == (3, 2, 1)


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=20),
    st.integers(0, 300),
)
def test_spread_usage_adds_up(lengths: list[int], total: int) -> None:
    chunks = [Chunk(float(i), length, True, None, None) for i, length in enumerate(lengths)]
    method, counts = count_tokens(chunks, total)
    assert method == "final_usage"
    assert sum(counts) == total and min(counts) >= 0
    first = next((i for i, length in enumerate(lengths) if length), None)
    if first is not None and total:
        assert counts[first] >= 1
        assert all(count == 0 for count in counts[:first])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20))
def test_running_usage_gives_each_chunk_its_tokens(sizes: list[int]) -> None:
    so_far, chunks = 0, []
    for i, size in enumerate(sizes):
        so_far += size
        chunks.append(Chunk(float(i), 3, True, None, so_far))
    assert count_tokens(chunks, so_far) == ("continuous_usage", sizes)

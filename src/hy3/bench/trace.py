"""What one streamed request looked like on the wire, its tokens counted as tokens.

An event may carry several tokens (accepted drafts arrive together) or none (a role, a keep-alive),
so events are never counted. The number of tokens in each comes from, in this order: the token ids
that the server returns, the running usage in each chunk, the final usage spread over the text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from hy3.bench.client import Endpoint, RequestFailure, StreamEvent


@dataclass(frozen=True)
class TokenRead:
    """The tokens that one network read brought; ``visible`` when any of them was an answer."""

    at_s: float
    tokens: int
    visible: bool


@dataclass(frozen=True)
class RequestTrace:
    """One finished request. ``failure`` is None when it ended as promised.

    ``output_tokens`` is our count and ``usage_tokens`` the server's; ``draft_histogram[j]`` is the
    number of verification steps that accepted exactly j drafts, when the server says so.
    """

    stream: int
    started_s: float
    finished_s: float
    reads: tuple[TokenRead, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    usage_tokens: int | None = None
    finish_reason: str | None = None
    counted_by: str | None = None
    draft_histogram: tuple[int, ...] | None = None
    failure: str | None = None
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def output_tokens(self) -> int:
        return sum(read.tokens for read in self.reads)


@dataclass(frozen=True)
class Chunk:
    """The countable parts of one event that belongs to a choice."""

    at_s: float
    text_length: int
    visible: bool
    ids: int | None
    usage: int | None  # completion tokens so far


async def measure(
    endpoint: Endpoint, path: str, body: dict[str, Any], stream: int = 0
) -> RequestTrace:
    """Send one request and record it; a failure becomes part of the trace."""
    events: list[StreamEvent] = []
    failure: RequestFailure | None = None
    started_s = time.perf_counter()
    try:
        async for event in endpoint.stream(path, body):
            events.append(event)  # noqa: PERF401 - what arrived before a failure is kept
    except RequestFailure as error:
        failure = error
    finished_s = time.perf_counter()
    return build_trace(events, started_s, finished_s, stream, failure)


def build_trace(
    events: Sequence[StreamEvent],
    started_s: float,
    finished_s: float,
    stream: int = 0,
    failure: RequestFailure | None = None,
) -> RequestTrace:
    """The trace of recorded events; pure, so that its arithmetic can be tested without a clock."""
    chunks = [_chunk(event) for event in events if event.data.get("choices")]
    usages = [event.data["usage"] for event in events if event.data.get("usage")]
    usage: dict[str, Any] = usages[-1] if usages else {}
    usage_tokens = usage.get("completion_tokens")
    counted_by, counts = count_tokens(chunks, usage_tokens)
    if failure is None and counted_by is None:
        failure = RequestFailure("no_usage", "the server sent neither token ids nor usage")
    choices = [choice for event in events for choice in event.data.get("choices") or ()]
    details = usage.get("prompt_tokens_details") or {}
    return RequestTrace(
        stream=stream,
        started_s=started_s,
        finished_s=finished_s,
        reads=_merge_reads(chunks, counts),
        prompt_tokens=usage.get("prompt_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
        usage_tokens=usage_tokens,
        finish_reason=next((c["finish_reason"] for c in choices if c.get("finish_reason")), None),
        counted_by=counted_by,
        draft_histogram=_draft_histogram([event.data for event in events] + choices),
        failure=failure.reason if failure else None,
        detail=failure.detail if failure else "",
    )


def count_tokens(chunks: Sequence[Chunk], usage_tokens: int | None) -> tuple[str | None, list[int]]:
    """The method used and the tokens of each chunk; (None, zeros) when nothing can be counted."""
    with_text = [chunk for chunk in chunks if chunk.text_length]
    if any(chunk.ids for chunk in chunks):
        return "token_ids", [chunk.ids or 0 for chunk in chunks]
    if with_text and with_text[0].usage is not None:
        so_far = _running_maximum([chunk.usage or 0 for chunk in chunks])
        if usage_tokens is not None:
            so_far[-1] = max(so_far[-1], usage_tokens)
        return "continuous_usage", [after - before for before, after in pairwise([0, *so_far])]
    if usage_tokens is not None and chunks:
        return "final_usage", _spread(usage_tokens, [chunk.text_length for chunk in chunks])
    return None, [0] * len(chunks)


def _running_maximum(values: Sequence[int]) -> list[int]:
    highest, result = 0, []
    for value in values:
        highest = max(highest, value)
        result.append(highest)
    return result


def _spread(total: int, lengths: Sequence[int]) -> list[int]:
    """``total`` tokens over chunks in proportion to their text; the counts add up exactly.

    The first chunk with text holds at least one token: it was seen to arrive.
    """
    whole = sum(lengths)
    if not whole:
        return [0] * (len(lengths) - 1) + [total]
    marks, seen = [0], 0
    for length in lengths:
        seen += length
        marks.append(max(round(total * seen / whole), min(1, seen, total)))
    return [after - before for before, after in pairwise(marks)]


def _merge_reads(chunks: Sequence[Chunk], counts: Sequence[int]) -> tuple[TokenRead, ...]:
    reads = []
    for at_s, group in groupby(zip(chunks, counts, strict=True), key=lambda pair: pair[0].at_s):
        pairs = list(group)
        tokens = sum(count for _, count in pairs)
        if tokens:
            reads.append(TokenRead(at_s, tokens, any(chunk.visible for chunk, _ in pairs)))
    return tuple(reads)


def _chunk(event: StreamEvent) -> Chunk:
    choice = event.data["choices"][0]
    delta = choice.get("delta") or {}
    answer = (delta.get("content") or choice.get("text") or "") + "".join(
        (call.get("function") or {}).get("arguments") or ""
        for call in delta.get("tool_calls") or ()
    )
    thought = delta.get("reasoning") or delta.get("reasoning_content") or ""
    usage = event.data.get("usage") or {}
    ids = choice.get("token_ids")
    return Chunk(
        at_s=event.at_s,
        text_length=len(answer) + len(thought),
        visible=bool(answer),
        ids=len(ids) if ids is not None else None,
        usage=usage.get("completion_tokens"),
    )


def _draft_histogram(objects: Sequence[dict[str, Any]]) -> tuple[int, ...] | None:
    """The acceptance histogram of the per-request object, dense or as a map, wherever it hangs."""
    for holder in reversed(objects):
        stats = (holder.get("metrics") or {}).get("speculative_decoding")
        stats = stats or holder.get("speculative_decoding_stats")
        histogram = (stats or {}).get("acceptance_histogram")
        if isinstance(histogram, dict):
            by_length = {int(accepted): steps for accepted, steps in histogram.items()}
            return tuple(by_length.get(j, 0) for j in range(max(by_length, default=0) + 1))
        if histogram is not None:
            return tuple(histogram)
    return None

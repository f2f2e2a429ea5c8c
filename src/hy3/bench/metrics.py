"""From traces to figures; every formula stands here and in docs/bench.md.

For one request with reads at t_1 .. t_m carrying k_1 .. k_m tokens, n in all, sent at t_0:

- TTFT = t_1 - t_0; TTFO = (first read with visible text) - t_0; E2E = end of stream - t_0
- TPOT = (t_m - t_1) / (n - k_1): the tokens of the first read cost no decode time that was seen
- ICL = t_i - t_(i-1), the gap between reads; ITL = the same gap / k_i, once for each of its tokens

Over a run of requests that ended as promised:

- tok/s per stream = sum of (n - k_1) / sum of (t_m - t_1)
- total tok/s = all output tokens / (last end - first send)
- steady tok/s = tokens that arrived in the steady window / its length; the window opens when the
  last stream has its first token and closes when the first stream has no request left
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hy3.bench.trace import RequestTrace

PERCENTILES = (50, 90, 99, 100)


@dataclass(frozen=True)
class RunMetrics:
    """The figures of one run; times in milliseconds, None where nothing could be measured."""

    requests: int
    ok: int
    failed: dict[str, int]
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    usage_tokens: int | None
    truncated: int
    counted_by: str | None
    ttft_ms: dict[str, float] | None
    ttfo_ms: dict[str, float] | None
    tpot_ms: dict[str, float] | None
    itl_ms: dict[str, float] | None
    icl_ms: dict[str, float] | None
    e2e_ms: dict[str, float] | None
    tok_s_stream: float | None
    tok_s_total: float | None
    tok_s_steady: float | None
    steady_window_s: float | None


def summarize(traces: Sequence[RequestTrace]) -> RunMetrics:
    """All figures of a run, over the requests that ended as promised and brought tokens."""
    good = [trace for trace in traces if trace.ok]
    timed = [trace for trace in good if trace.reads]
    window = steady_window(good)
    usages = [trace.usage_tokens for trace in good]
    return RunMetrics(
        requests=len(traces),
        ok=len(good),
        failed=dict(Counter(trace.failure for trace in traces if trace.failure)),
        input_tokens=sum(trace.prompt_tokens for trace in good),
        cached_tokens=sum(trace.cached_tokens for trace in good),
        output_tokens=sum(trace.output_tokens for trace in good),
        usage_tokens=None if None in usages else sum(usage or 0 for usage in usages),
        truncated=sum(trace.finish_reason == "length" for trace in good),
        counted_by=next((trace.counted_by for trace in good), None),
        ttft_ms=distribution([t.reads[0].at_s - t.started_s for t in timed]),
        ttfo_ms=distribution([v for t in timed if (v := ttfo_s(t)) is not None]),
        tpot_ms=distribution([v for t in timed if (v := tpot_s(t)) is not None]),
        itl_ms=distribution([gap for t in timed for gap in token_gaps_s(t)]),
        icl_ms=distribution([b.at_s - a.at_s for t in timed for a, b in pairwise(t.reads)]),
        e2e_ms=distribution([t.finished_s - t.started_s for t in timed]),
        tok_s_stream=stream_rate(timed),
        tok_s_total=total_rate(good),
        tok_s_steady=window_rate(good, window) if window else None,
        steady_window_s=window[1] - window[0] if window else None,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest ranks, as numpy does by default."""
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def distribution(seconds: Sequence[float]) -> dict[str, float] | None:
    """``{"p50", "p90", "p99", "max"}`` in milliseconds; None of nothing."""
    if not seconds:
        return None
    names = (f"p{percent}" if percent < 100 else "max" for percent in PERCENTILES)
    return {
        name: percentile(seconds, percent) * 1000
        for name, percent in zip(names, PERCENTILES, strict=True)
    }


def tpot_s(trace: RequestTrace) -> float | None:
    """Seconds per output token after the first read; None when everything came in one read."""
    tokens, seconds = _decode(trace)
    return seconds / tokens if tokens else None


def ttfo_s(trace: RequestTrace) -> float | None:
    """Seconds to the first visible token; None when there was none."""
    return next((read.at_s - trace.started_s for read in trace.reads if read.visible), None)


def token_gaps_s(trace: RequestTrace) -> list[float]:
    """One gap per token after the first read: the read's gap shared among its tokens."""
    return [
        (after.at_s - before.at_s) / after.tokens
        for before, after in pairwise(trace.reads)
        for _ in range(after.tokens)
    ]


def stream_rate(traces: Sequence[RequestTrace]) -> float | None:
    """Decode tokens per second of one stream, pooled over the requests."""
    pairs = [_decode(trace) for trace in traces]
    seconds = sum(pair[1] for pair in pairs)
    return sum(pair[0] for pair in pairs) / seconds if seconds > 0 else None


def total_rate(traces: Sequence[RequestTrace]) -> float | None:
    """All output tokens over the whole run, prefill and ramps included."""
    if not traces:
        return None
    seconds = max(t.finished_s for t in traces) - min(t.started_s for t in traces)
    return sum(t.output_tokens for t in traces) / seconds if seconds > 0 else None


def steady_window(traces: Sequence[RequestTrace]) -> tuple[float, float] | None:
    """Start and end of the time in which every stream was at work; None when there is none."""
    timed = [trace for trace in traces if trace.reads]
    first_tokens: dict[int, float] = {}
    last_ends: dict[int, float] = {}
    for trace in timed:
        first = trace.reads[0].at_s
        first_tokens[trace.stream] = min(first, first_tokens.get(trace.stream, first))
        last_ends[trace.stream] = max(trace.finished_s, last_ends.get(trace.stream, 0.0))
    if not timed:
        return None
    start, end = max(first_tokens.values()), min(last_ends.values())
    return (start, end) if end > start else None


def window_rate(traces: Sequence[RequestTrace], window: tuple[float, float]) -> float:
    """Tokens per second of the reads in ``(start, end]``."""
    start, end = window
    tokens = sum(r.tokens for t in traces for r in t.reads if start < r.at_s <= end)
    return tokens / (end - start)


def _decode(trace: RequestTrace) -> tuple[int, float]:
    tokens = trace.output_tokens - trace.reads[0].tokens
    return tokens, trace.reads[-1].at_s - trace.reads[0].at_s

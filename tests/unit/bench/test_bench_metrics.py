"""The formulas on traces with hand-made times, and percentiles against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hy3.bench.metrics import (
    percentile,
    steady_window,
    stream_rate,
    summarize,
    token_gaps_s,
    tpot_s,
)
from hy3.bench.trace import RequestTrace, TokenRead


def trace(stream: int, start: float, *reads: tuple[float, int], **more: object) -> RequestTrace:
    found = tuple(TokenRead(at_s, tokens, True) for at_s, tokens in reads)
    end = reads[-1][0] if reads else start
    fields = {"prompt_tokens": 10, "counted_by": "token_ids", "finish_reason": "length"} | more
    return RequestTrace(stream, start, end, found, **fields)


ONE = trace(0, 0.0, (1.0, 2), (1.5, 3), (2.0, 1))  # 6 tokens, 4 of them in 1 s of decode
TWO = trace(1, 0.0, (1.2, 1), (2.2, 4))  # 5 tokens, 4 in 1 s
THREE = trace(0, 2.0, (2.4, 1), (3.4, 2))  # 3 tokens, 2 in 1 s


def test_formulas_by_hand() -> None:
    assert tpot_s(ONE) == 0.25
    assert token_gaps_s(ONE) == pytest.approx([0.5 / 3] * 3 + [0.5])
    assert stream_rate([ONE, TWO, THREE]) == pytest.approx(10 / 3)
    assert steady_window([ONE, TWO, THREE]) == (1.2, 2.2)

    run = summarize([ONE, TWO, THREE])
    assert (run.requests, run.ok, run.input_tokens, run.output_tokens) == (3, 3, 30, 14)
    assert run.tok_s_total == pytest.approx(14 / 3.4)
    # In (1.2, 2.2]: 3 and 1 of ONE, 4 of TWO.
    assert run.tok_s_steady == pytest.approx(8.0)
    assert run.ttft_ms["p50"] == pytest.approx(1000)
    assert run.ttft_ms["max"] == pytest.approx(1200)
    assert run.tpot_ms["p50"] == pytest.approx(250)
    assert run.e2e_ms["max"] == pytest.approx(2200)
    assert run.truncated == 3


def test_failures_are_counted_and_never_timed() -> None:
    failed = trace(1, 0.0, (9.0, 500), failure="cut", detail="x")
    run = summarize([ONE, failed])
    assert (run.requests, run.ok, run.failed) == (2, 1, {"cut": 1})
    assert run.output_tokens == 6
    assert run.ttft_ms["max"] == pytest.approx(1000)


def test_one_read_has_no_tpot() -> None:
    assert tpot_s(trace(0, 0.0, (1.0, 5))) is None
    run = summarize([trace(0, 0.0, (1.0, 5))])
    assert run.tpot_ms is None and run.tok_s_stream is None
    assert run.tok_s_total == pytest.approx(5.0)


def test_no_common_time_has_no_steady_window() -> None:
    assert steady_window([trace(0, 0.0, (1.0, 1), (2.0, 1)), trace(1, 2.5, (3.0, 1))]) is None
    assert steady_window([]) is None


def test_nothing_measured_gives_nones() -> None:
    run = summarize([trace(0, 0.0, failure="refused")])
    assert run.ttft_ms is None and run.tok_s_total is None and run.failed == {"refused": 1}


floats = st.floats(0, 1e6, allow_nan=False)


@given(st.lists(floats, min_size=1, max_size=50), st.sampled_from([0, 1, 50, 90, 99, 100]))
def test_percentile_is_numpys(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent), rel=1e-9)


@st.composite
def traces(draw: st.DrawFn) -> RequestTrace:
    at_s = draw(st.floats(0.1, 5))
    reads = []
    for _ in range(draw(st.integers(1, 8))):
        reads.append((at_s, draw(st.integers(1, 5))))
        at_s += draw(st.floats(0.001, 2))
    return trace(draw(st.integers(0, 3)), 0.0, *reads)


@given(st.lists(traces(), min_size=1, max_size=8))
def test_metrics_against_numpy(found: list[RequestTrace]) -> None:
    run = summarize(found)
    tpots = [
        (t.reads[-1].at_s - t.reads[0].at_s) / sum(r.tokens for r in t.reads[1:])
        for t in found
        if len(t.reads) > 1
    ]
    if tpots:
        for name, percent in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)):
            assert run.tpot_ms[name] == pytest.approx(1000 * np.percentile(tpots, percent))
        # The gaps of a request's tokens add up to its decode time.
        for one in found:
            whole = one.reads[-1].at_s - one.reads[0].at_s
            assert sum(token_gaps_s(one)) == pytest.approx(whole)
    if run.steady_window_s is not None:
        assert run.tok_s_steady <= run.output_tokens / run.steady_window_s

"""Acceptance arithmetic: histograms, counters, conditional against unconditional."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hy3.bench.acceptance import (
    NO_DRAFTS,
    DraftCounts,
    counter_delta,
    from_histograms,
    parse_counters,
)

PAGE = """
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 1000.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 2000.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 900.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 700.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 2.0e+02
other:spec_decode_num_drafts_total 5
"""


def test_the_published_case() -> None:
    """Position 2 accepted at 20 % of all steps is 29 % of those that accepted position 1."""
    counts = parse_counters(PAGE)
    assert counts == DraftCounts(1000, (700, 200), "metrics")
    assert counts.per_position == [0.7, 0.2]
    assert counts.conditional == pytest.approx([0.7, 200 / 700])
    assert counts.tokens_per_step == pytest.approx(1.9)


def test_our_names_and_several_engines_add_up() -> None:
    ours = PAGE.replace("vllm:", "hy3:")
    second = ours.replace('engine="0"', 'engine="1"')
    assert parse_counters(ours + second) == DraftCounts(2000, (1400, 400), "metrics")
    assert parse_counters("# nothing\nhy3:num_requests_running 1\n") is None


def test_counter_delta() -> None:
    before = DraftCounts(10, (5,), "metrics")
    after = DraftCounts(30, (20, 4), "metrics")
    assert counter_delta(before, after) == DraftCounts(20, (15, 4), "metrics")
    assert counter_delta(None, after) == after
    assert counter_delta(before, None) is None


def test_histograms_are_pooled() -> None:
    # 10 steps: 4 accepted none, 3 one, 3 two.
    counts = from_histograms([(3, 2), (1, 1, 3)])
    assert counts == DraftCounts(10, (6, 3), "per-request")
    assert counts.conditional == [0.6, 0.5]


def test_a_part_of_the_requests_does_not_stand_for_the_run() -> None:
    assert from_histograms([(3, 2), None]) is None
    assert from_histograms([]) is None


def test_no_drafts() -> None:
    assert (NO_DRAFTS.per_position, NO_DRAFTS.conditional) == ([], [])
    assert NO_DRAFTS.tokens_per_step is None
    assert DraftCounts(4, (0, 0), "metrics").conditional == [0.0, None]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_against_a_replay_of_the_steps(steps: list[int]) -> None:
    histogram = [steps.count(j) for j in range(4)]
    counts = from_histograms([histogram])
    assert counts.tokens_per_step == pytest.approx(sum(s + 1 for s in steps) / len(steps))
    for i in range(3):
        assert counts.per_position[i] == pytest.approx(sum(s > i for s in steps) / len(steps))
        reached = [s for s in steps if s >= i]
        expected = sum(s > i for s in reached) / len(reached) if reached else None
        assert counts.conditional[i] == (expected if expected is None else pytest.approx(expected))

"""Usage and the per-request acceptance object."""

from __future__ import annotations

import pytest

from hy3.engine.request import Usage as EngineUsage
from hy3.server.generation import Usage
from hy3.server.usage import encode_drafts, encode_usage


def test_usage_in_openais_form() -> None:
    usage = Usage(prompt_tokens=10, output_tokens=4, cached_tokens=8)
    assert encode_usage(usage, reasoning_tokens=3) == {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    assert "completion_tokens_details" not in encode_usage(usage)


def drafts(drafted: tuple[int, ...], accepted: tuple[int, ...]) -> EngineUsage:
    return EngineUsage(1, 1, 0, drafted, accepted)


@pytest.mark.parametrize("usages", [[], [drafts((), ())], [drafts((0, 0), (0, 0))]])
def test_nothing_drafted_says_nothing(usages: list[EngineUsage]) -> None:
    assert encode_drafts(usages) == {}


def test_the_histogram_counts_steps_by_accepted_drafts() -> None:
    # Ten steps: 3 accepted none, 5 exactly one, 2 both; one step drafted a single token.
    (found,) = encode_drafts([drafts((10, 9), (7, 2))]).values()
    assert found["speculative_decoding"] == {
        "num_drafts": 10,
        "num_draft_tokens": 19,
        "num_accepted_tokens": 9,
        "acceptance_histogram": [3, 5, 2],
    }


def test_choices_are_pooled() -> None:
    (found,) = encode_drafts([drafts((4,), (3,)), drafts((6,), (1,))]).values()
    assert found["speculative_decoding"]["acceptance_histogram"] == [6, 4]

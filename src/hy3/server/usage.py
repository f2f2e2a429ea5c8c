"""What a completion tells about its cost: ``usage``, and how its drafts fared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hy3.engine.request import Usage as EngineUsage
from hy3.server.generation import Usage


def encode_usage(usage: Usage, reasoning_tokens: int | None = None) -> dict[str, Any]:
    """OpenAI's form; ``reasoning_tokens`` is for chat only."""
    body: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if reasoning_tokens is not None:
        body["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return body


def encode_drafts(usages: Sequence[EngineUsage]) -> dict[str, Any]:
    """vLLM's per-request ``metrics``: how many verifying steps accepted 0, 1, ... drafts.

    Empty when nothing was drafted.
    """
    depth = max((len(usage.drafted) for usage in usages), default=0)
    drafted = [sum(usage.drafted[i] for usage in usages) for i in range(depth)]
    if not drafted or not drafted[0]:
        return {}
    # Steps that accepted at least 0, 1, ... drafts, and none beyond the depth.
    at_least = [drafted[0], *(sum(u.accepted[i] for u in usages) for i in range(depth)), 0]
    histogram = [more - fewer for more, fewer in pairwise(at_least)]
    counts = {
        "num_drafts": drafted[0],
        "num_draft_tokens": sum(drafted),
        "num_accepted_tokens": sum(at_least[1:]),
        "acceptance_histogram": histogram,
    }
    return {"metrics": {"speculative_decoding": counts}}

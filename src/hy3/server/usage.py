"""The ``usage`` object of both kinds of completion."""

from __future__ import annotations

from typing import Any

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

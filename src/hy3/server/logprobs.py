"""Log probabilities in the two shapes that OpenAI has for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hy3.engine.request import TokenLogprob

# JSON has no minus infinity; OpenAI writes this for a token that cannot come.
_LOWEST = -9999.0


def chat_logprobs(
    logprobs: Sequence[TokenLogprob], token_bytes: Callable[[int], bytes]
) -> list[dict[str, Any]]:
    """The entries of a chat choice's ``logprobs.content``."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = token_bytes(token_id)
        text = raw.decode("utf-8", "replace")
        return {"token": text, "logprob": max(logprob, _LOWEST), "bytes": list(raw)}

    return [
        {
            **entry(item.token_id, item.logprob),
            "top_logprobs": [entry(token_id, logprob) for token_id, logprob in item.top],
        }
        for item in logprobs
    ]


def completion_logprobs(
    logprobs: Sequence[TokenLogprob], token_bytes: Callable[[int], bytes], offset: int
) -> dict[str, Any]:
    """A completion choice's ``logprobs``; ``offset`` is where its text begins, in characters."""
    tokens: list[str] = []
    offsets: list[int] = []
    for item in logprobs:
        tokens.append(token_bytes(item.token_id).decode("utf-8", "replace"))
        offsets.append(offset)
        offset += len(tokens[-1])
    return {
        "tokens": tokens,
        "token_logprobs": [max(item.logprob, _LOWEST) for item in logprobs],
        "top_logprobs": [
            {
                token_bytes(token_id).decode("utf-8", "replace"): max(logprob, _LOWEST)
                for token_id, logprob in item.top
            }
            for item in logprobs
        ],
        "text_offset": offsets,
    }

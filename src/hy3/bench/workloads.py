"""Prompts of real text of a wanted length in tokens.

Random tokens would mislead: a draft layer cannot predict them, and no user sends them. The text is
the language reference that Python carries in ``pydoc_data``, read at run time. Each prompt starts
elsewhere in it, and so does each seed, so that no prompt is found in the server's prefix cache.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

PATHS = {"chat": "/chat/completions", "completions": "/completions"}
_FIRST_GUESS_CHARACTERS_PER_TOKEN = 3.0
_STRIDE = 54_001  # characters; a prime: successive prompts begin far apart
_INSTRUCTION = "\n\nContinue this text at length."


@dataclass(frozen=True)
class Workload:
    """What each request asks; ``characters`` of text fit the wanted prompt length."""

    api: str  # "chat" or "completions"
    model: str
    characters: int
    output_tokens: int
    temperature: float
    seed: int = 0  # of the prompts

    @property
    def path(self) -> str:
        return PATHS[self.api]

    def body(self, index: int) -> dict[str, Any]:
        """Request number ``index``; the same seed and index give the same body."""
        return request_body(
            self.api,
            self.model,
            passage(index, self.characters, self.seed),
            max_tokens=self.output_tokens,
            temperature=self.temperature,
            seed=index,
        )


def request_body(api: str, model: str, text: str, **sampling: Any) -> dict[str, Any]:
    """A streamed request that asks for every way of counting tokens and runs to its limit."""
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
        "ignore_eos": True,
        "top_p": 1.0,
        **sampling,
    }
    if api == "chat":
        body["messages"] = [{"role": "user", "content": text + _INSTRUCTION}]
    else:
        body["prompt"] = text
    return body


def passage(index: int, characters: int, seed: int = 0) -> str:
    """Passage number ``index`` of the corpus, from a word's beginning; goes round at its end.

    The seed moves all passages by the same way.
    """
    corpus = _corpus()
    first = Random(seed).randrange(len(corpus))
    start = corpus.find(" ", (first + index * _STRIDE) % len(corpus)) + 1
    rounds = characters // len(corpus) + 2
    return (corpus[start:] + corpus * rounds)[:characters]


async def fit_characters(
    wanted_tokens: int, count: Callable[[str], Awaitable[int]], seed: int = 0
) -> int:
    """The length of text whose prompt has about ``wanted_tokens`` tokens as the server counts.

    Two counts give the tokens per character and the fixed cost of the template around the text.
    """
    guess = round(wanted_tokens * _FIRST_GUESS_CHARACTERS_PER_TOKEN)
    half = guess // 2
    small = await count(passage(0, half, seed))
    large = await count(passage(0, guess, seed))
    per_character = (large - small) / (guess - half)
    if per_character <= 0:
        return guess
    return max(1, half + round((wanted_tokens - small) / per_character))


@cache
def _corpus() -> str:
    from pydoc_data.topics import topics

    return " ".join(word for name in sorted(topics) for word in topics[name].split()) + " "

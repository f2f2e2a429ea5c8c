"""Chat prompts of many kinds from a seed, rendered by a checkpoint's own template."""

from __future__ import annotations

import random
from pathlib import Path

from hy3.chat.template import ChatTemplate
from hy3.chat.tokenizer import Tokenizer

COUNTRIES = ("France", "Japan", "Kenya", "Peru", "Norway", "Egypt", "Canada", "India", "Chile")
WORDS = ("river", "stone", "apple", "cloud", "engine", "paper", "garden", "window", "violin")
TOPICS = ("the sea", "a lost key", "the first snow", "an old clock", "a long train ride")


def make_prompts(folder: Path, count: int, seed: int = 0) -> list[list[int]]:
    """Token ids of ``count`` prompts; a third asks for reasoning, some share a system prompt."""
    rng = random.Random(seed)
    template, tokenizer = ChatTemplate(folder), Tokenizer(folder)
    prompts = []
    for index in range(count):
        messages = [{"role": "user", "content": _question(rng)}]
        if index % 4 == 0:
            messages.insert(0, {"role": "system", "content": "You answer in one short sentence."})
        effort = "high" if index % 3 == 0 else "no_think"
        prompts.append(tokenizer.encode(template.render(messages, reasoning_effort=effort)))
    return prompts


def _question(rng: random.Random) -> str:
    first, second = rng.randrange(1, 999), rng.randrange(1, 99)
    words = rng.sample(WORDS, rng.randrange(2, 6))
    return rng.choice(
        (
            f"What is {first} + {second}?",
            f"What is {first + second} - {second}?",
            f"What is the capital of {rng.choice(COUNTRIES)}?",
            f"Count from {second} to {second + 9}.",
            f"Sort these words: {', '.join(words)}.",
            f"Repeat: {' '.join(words)}",
            f"Tell a story about {rng.choice(TOPICS)}.",
            f"Write a Python function that returns {words[0]} plus {first}.",
        )
    )

"""Scheduled chunks of sequences in a given state, for tests of what happens to their logits."""

from __future__ import annotations

from hy3.engine.history import TokenHistory
from hy3.engine.request import Request, SamplingParams
from hy3.engine.scheduler import Chunk
from hy3.engine.sequence import Sequence


def chunk(params, prompt=(0,), output=(), drafts=(), stop_ids=(), vocab=5, matcher=None):
    """A decode chunk of a request that has produced ``output``."""
    history = TokenHistory(prompt, vocab) if params.penalised else None
    sequence = Sequence(
        Request("r", tuple(prompt), params),
        frozenset(stop_ids),
        seed=params.seed or 0,
        history=history,
        matcher=matcher,
    )
    sequence.token_ids += output
    if history:
        history.add(output)
    return Chunk(sequence, len(sequence.token_ids) - 1, 1, tuple(drafts), samples=True)


def greedy(**params):
    return SamplingParams(**{"max_tokens": 50, "temperature": 0, **params})

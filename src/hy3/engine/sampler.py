"""Choosing tokens from logits: one decision per row, whatever else is in the batch.

A draw inverts the cumulative distribution at a uniform number that depends on the request's seed
and on the index of the output token alone. So a seed gives the same tokens in any batch, at any
draft depth, after preemption too.

A row after drafts is conditioned on them: grammar, bias and penalties see the drafts before it.
"""

from __future__ import annotations

from collections.abc import Sequence as Sized

import torch
from torch import Tensor

from hy3.engine.request import SamplingParams, TokenLogprob
from hy3.engine.scheduler import Chunk
from hy3.engine.sequence import Sequence

MASK64 = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
MINUS_INFINITY = float("-inf")


def choose_tokens(logits: Tensor, chunks: Sized[Chunk]) -> list[list[int]]:
    """The target model's token at each sampling row, per chunk.

    Args:
        logits: [rows, vocab] fp32, unmodified here; for each chunk of ``chunks`` the row of its
            last known token, then one row per draft
    """
    if any(_is_adjusted(chunk.sequence) for chunk in chunks):
        logits = _adjusted(logits, chunks)
    tokens: list[int] = logits.argmax(-1).tolist()
    _replace_by_draws(tokens, logits, chunks)
    split, start = [], 0
    for chunk in chunks:
        end = start + 1 + len(chunk.drafts)
        split.append(tokens[start:end])
        start = end
    return split


def uniform(seed: int, index: int) -> float:
    """Number ``index`` of a seed's stream, in [0, 1) with 24 bits (SplitMix64)."""
    mixed = _mix(_mix(seed & MASK64) + (index + 1) * GOLDEN & MASK64)
    return (mixed >> 40) / 2**24


def token_logprobs(logits: Tensor, token_ids: Sized[int], count: int) -> list[TokenLogprob]:
    """Log probabilities of the chosen tokens and of the ``count`` likeliest, from raw logits.

    Args:
        logits: [tokens, vocab] fp32, one row per chosen token
    """
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])
    top = logprobs.topk(count, dim=-1)
    rows = zip(chosen[:, 0].tolist(), top.indices.tolist(), top.values.tolist(), strict=True)
    return [
        TokenLogprob(token_id, logprob, tuple(zip(ids, values, strict=True)))
        for token_id, (logprob, ids, values) in zip(token_ids, rows, strict=True)
    ]


def draw(
    logits: Tensor,
    uniforms: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
) -> Tensor:
    """One token per row, [rows]: min_p, then top_k, then the least set that reaches top_p.

    Args:
        logits: [rows, vocab] fp32; the other arguments are [rows]; ``top_k`` at least 1
    """
    probs = (logits / temperature[:, None]).softmax(-1)
    probs, token_ids = probs.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(probs.shape[1], device=probs.device)
    keep = (ranks < top_k[:, None]) & (probs >= min_p[:, None] * probs[:, :1])
    probs = probs * keep
    before = probs.cumsum(-1) - probs
    probs = probs * (before < top_p[:, None] * probs.sum(-1, keepdim=True))
    return token_ids.gather(1, _invert(probs, uniforms)[:, None])[:, 0]


def draw_untruncated(logits: Tensor, uniforms: Tensor, temperature: Tensor) -> Tensor:
    """``draw`` without truncation, in vocabulary order and so without a sort."""
    return _invert((logits / temperature[:, None]).softmax(-1), uniforms)


def _invert(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Index at which the running sum of ``weights`` passes the share ``uniforms`` of the total.

    Never an index of weight zero: the target stays below the total, and where rounding lifts it
    to the total the last index that adds anything is taken.
    """
    sums = weights.cumsum(-1)
    total = sums[:, -1:].contiguous()
    passed = torch.searchsorted(sums, uniforms[:, None] * total, right=True)
    return torch.minimum(passed, torch.searchsorted(sums, total))[:, 0]


def _replace_by_draws(tokens: list[int], logits: Tensor, chunks: Sized[Chunk]) -> None:
    """Overwrite the entries of ``tokens`` whose request is not greedy."""
    plain: list[tuple[int, float, SamplingParams]] = []  # row, uniform, parameters
    truncated: list[tuple[int, float, SamplingParams]] = []
    row = 0
    for chunk in chunks:
        sequence, params = chunk.sequence, chunk.sequence.request.params
        num_rows = 1 + len(chunk.drafts)
        if not params.greedy:
            kind = truncated if params.truncates else plain
            first = sequence.num_output
            kind += [(row + i, uniform(sequence.seed, first + i), params) for i in range(num_rows)]
        row += num_rows
    for kind, chooses in ((plain, _draw_plain), (truncated, _draw_truncated)):
        if kind:
            rows, uniforms, params_of = zip(*kind, strict=True)
            picked = logits if len(rows) == len(logits) else logits[list(rows)]
            values = torch.tensor(uniforms, device=logits.device)
            for index, token in zip(rows, chooses(picked, values, params_of), strict=True):
                tokens[index] = token


def _draw_plain(logits: Tensor, uniforms: Tensor, params: Sized[SamplingParams]) -> list[int]:
    temperature = torch.tensor([p.temperature for p in params], device=logits.device)
    tokens: list[int] = draw_untruncated(logits, uniforms, temperature).tolist()
    return tokens


def _draw_truncated(logits: Tensor, uniforms: Tensor, params: Sized[SamplingParams]) -> list[int]:
    def column(values: Sized[float]) -> Tensor:
        return torch.tensor(values, device=logits.device)

    vocab = logits.shape[1]
    tokens: list[int] = draw(
        logits,
        uniforms,
        temperature=column([p.temperature for p in params]),
        top_k=column([p.top_k if p.top_k > 0 else vocab for p in params]),
        top_p=column([p.top_p for p in params]),
        min_p=column([p.min_p for p in params]),
    ).tolist()
    return tokens


def _is_adjusted(sequence: Sequence) -> bool:
    params = sequence.request.params
    return bool(
        sequence.matcher
        or sequence.history
        or params.logit_bias
        or sequence.num_output < params.min_tokens
    )


def _adjusted(logits: Tensor, chunks: Sized[Chunk]) -> Tensor:
    """A copy of ``logits`` under each request's grammar, bias, minimum length and penalties."""
    logits = logits.clone()
    start = 0
    for chunk in chunks:
        rows = logits[start : start + 1 + len(chunk.drafts)]
        sequence, params = chunk.sequence, chunk.sequence.request.params
        if params.logit_bias:
            biased = torch.tensor(list(params.logit_bias), device=logits.device)
            rows[:, biased] += torch.tensor(list(params.logit_bias.values()), device=logits.device)
        if sequence.history:
            _penalise(rows, chunk)
        if sequence.matcher:
            _constrain(rows, chunk)
        _forbid_stops(rows, sequence)
        start += len(rows)
    return logits


def _penalise(rows: Tensor, chunk: Chunk) -> None:
    history, params = chunk.sequence.history, chunk.sequence.request.params
    assert history is not None
    in_prompt = torch.from_numpy(history.in_prompt).to(rows.device)
    for index, row in enumerate(rows):
        history.add(chunk.drafts[:index])
        counts = torch.tensor(history.output_counts, device=rows.device)
        history.remove(chunk.drafts[:index])
        used = counts > 0
        repeated = torch.where(
            row > 0, row / params.repetition_penalty, row * params.repetition_penalty
        )
        row.copy_(torch.where(in_prompt | used, repeated, row))
        row -= params.frequency_penalty * counts + params.presence_penalty * used


def _forbid_stops(rows: Tensor, sequence: Sequence) -> None:
    """Stop ids in the rows before ``min_tokens``, unless a grammar leaves nothing else."""
    early = rows[: max(sequence.request.params.min_tokens - sequence.num_output, 0)]
    if len(early) and sequence.stop_ids:
        without = early.clone()
        without[:, torch.tensor(sorted(sequence.stop_ids), device=rows.device)] = MINUS_INFINITY
        possible = (without > MINUS_INFINITY).any(-1, keepdim=True)
        early.copy_(torch.where(possible, without, early))


def _constrain(rows: Tensor, chunk: Chunk) -> None:
    """Mask each row by the grammar's state after the drafts before it.

    Rows after a draft that the grammar forbids stay free: that draft is never accepted.
    """
    matcher = chunk.sequence.matcher
    assert matcher is not None
    accepted = 0
    for index, row in enumerate(rows):
        allowed = torch.from_numpy(matcher.mask()).to(rows.device)
        row.masked_fill_(~allowed, MINUS_INFINITY)
        if index == len(chunk.drafts) or not matcher.accept(chunk.drafts[index : index + 1]):
            break
        accepted += 1
    matcher.rollback(accepted)


def _mix(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK64
    return value ^ value >> 31

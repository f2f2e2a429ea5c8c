"""How far one model's next-token distributions lie from another's, both held in memory.

Teacher-forced: both see the same tokens, and every position but a document's last is compared
over the full vocabulary. KL is in nats, KL(reference || candidate). The noise row compares the
reference with itself computed in another shape; a candidate's figures mean nothing below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hy3.errors import InputError
from hy3.evaluate.bootstrap import ratio_standard_error

ROWS_AT_ONCE = 128
NOISE_EXTRA_TOKENS = 37  # odd, so that the longer run falls into other tiles


class ScoringModel(Protocol):
    """What is needed of a model: hidden states of one sequence, and logits of hidden states."""

    def forward_full(self, token_ids: Tensor) -> Tensor: ...  # [T] -> [T, hidden]

    def logits(self, hidden: Tensor) -> Tensor: ...  # [N, hidden] -> [N, vocab] fp32


class DraftingModel(ScoringModel, Protocol):
    """A model whose MTP layer can be run over a whole sequence."""

    def draft_full(self, next_token_ids: Tensor, hidden: Tensor) -> Tensor: ...  # [T, hidden]


Hidden = Callable[[Tensor], Tensor]  # [T] token ids -> [T, hidden]


@dataclass(frozen=True)
class DocumentScores:
    """Per compared position of one document, all ``[T - 1]``; log probabilities of true tokens."""

    kl: Tensor
    same_top1: Tensor
    reference_logprob: Tensor
    candidate_logprob: Tensor


@dataclass(frozen=True)
class Divergence:
    """Figures over all positions; ``*_se`` are block-bootstrap standard errors by document."""

    documents: int
    positions: int
    kl_mean: float
    kl_mean_se: float | None
    kl_median: float
    kl_p90: float
    kl_p99: float
    kl_max: float
    top1_agreement: float
    top1_agreement_se: float | None
    perplexity_reference: float
    perplexity_candidate: float
    log_perplexity_ratio: float
    log_perplexity_ratio_se: float | None


def compare_models(
    reference: ScoringModel, candidate: ScoringModel, documents: Sequence[Sequence[int]]
) -> Divergence:
    """The candidate against the reference on documents of token ids."""
    return _compare(reference, reference.forward_full, candidate, candidate.forward_full, documents)


def measure_noise(model: ScoringModel, documents: Sequence[Sequence[int]]) -> Divergence:
    """The model against itself, each document lengthened by tokens that its rows cannot see.

    Attention is causal, so in exact arithmetic nothing changes; what changes is the rounding of
    matrix products of another shape.
    """

    def in_other_shape(token_ids: Tensor) -> Tensor:
        longer = torch.cat([token_ids, token_ids[:1].expand(NOISE_EXTRA_TOKENS)])
        return model.forward_full(longer)[: len(token_ids)]

    return _compare(model, model.forward_full, model, in_other_shape, documents)


def draft_acceptance(model: DraftingModel, documents: Sequence[Sequence[int]]) -> float:
    """Share of positions where the MTP layer's first draft is the model's own most likely token.

    The draft made at position t, from its state and token t + 1, is held against the choice at
    t + 1: the acceptance of greedy decoding, on given text. Documents shorter than two tokens
    count nothing.
    """
    accepted = positions = 0
    for document in documents:
        token_ids = torch.tensor(document, dtype=torch.int64)
        with torch.inference_mode():
            hidden = model.forward_full(token_ids)
            drafted = model.draft_full(token_ids[1:], hidden[:-1])
            for start in range(0, len(drafted), ROWS_AT_ONCE):
                rows = slice(start, start + ROWS_AT_ONCE)
                choices = model.logits(hidden[1:][rows]).argmax(-1)
                same = model.logits(drafted[rows]).argmax(-1) == choices
                accepted, positions = accepted + int(same.sum()), positions + len(same)
    if not positions:
        raise InputError("no documents to draft on", hint="give at least one text", where="texts")
    return accepted / positions


def _compare(
    reference: ScoringModel,
    reference_hidden: Hidden,
    candidate: ScoringModel,
    candidate_hidden: Hidden,
    documents: Sequence[Sequence[int]],
) -> Divergence:
    scores = []
    for number, document in enumerate(documents):
        if len(document) < 2:
            raise InputError(
                "a document needs two tokens or more",
                hint="leave out empty documents",
                where=f"document {number}",
            )
        token_ids = torch.tensor(document, dtype=torch.int64)
        with torch.inference_mode():
            scores.append(
                score_document(
                    token_ids,
                    reference_hidden(token_ids),
                    reference.logits,
                    candidate_hidden(token_ids),
                    candidate.logits,
                )
            )
    return summarize(scores)


def score_document(
    token_ids: Tensor,  # [T]
    reference_hidden: Tensor,  # [T, hidden]
    reference_logits: Callable[[Tensor], Tensor],
    candidate_hidden: Tensor,  # [T, hidden]
    candidate_logits: Callable[[Tensor], Tensor],
) -> DocumentScores:
    """Compare position by position, a bounded number of rows of logits at a time, in float64."""
    parts = []
    for start in range(0, len(token_ids) - 1, ROWS_AT_ONCE):
        end = min(start + ROWS_AT_ONCE, len(token_ids) - 1)
        targets = token_ids[start + 1 : end + 1, None]  # [rows, 1]
        p = reference_logits(reference_hidden[start:end]).double().log_softmax(-1)  # [rows, vocab]
        q = candidate_logits(candidate_hidden[start:end]).double().log_softmax(-1)
        # Where p underflows to 0 the term is 0, whatever the difference of the logarithms.
        terms = torch.where(p.exp() > 0, p.exp() * (p - q), 0.0)
        parts.append(
            (
                terms.sum(-1).clamp_min(0.0),
                p.argmax(-1) == q.argmax(-1),
                p.gather(1, targets)[:, 0],
                q.gather(1, targets)[:, 0],
            )
        )
    return DocumentScores(*(torch.cat(column).cpu() for column in zip(*parts, strict=True)))


def summarize(scores: Sequence[DocumentScores]) -> Divergence:
    """Pool the positions of all documents; raises InputError when there are none."""
    if not scores:
        raise InputError("no documents to compare on", hint="give at least one text", where="texts")
    lengths = [len(score.kl) for score in scores]
    kl = torch.cat([score.kl for score in scores])
    same = torch.cat([score.same_top1 for score in scores]).double()
    reference = torch.cat([score.reference_logprob for score in scores])
    candidate = torch.cat([score.candidate_logprob for score in scores])
    log_ratios = [s.reference_logprob - s.candidate_logprob for s in scores]
    quantiles = torch.quantile(kl, torch.tensor([0.5, 0.9, 0.99, 1.0], dtype=kl.dtype)).tolist()
    return Divergence(
        documents=len(scores),
        positions=len(kl),
        kl_mean=kl.mean().item(),
        kl_mean_se=ratio_standard_error([s.kl.sum().item() for s in scores], lengths),
        kl_median=quantiles[0],
        kl_p90=quantiles[1],
        kl_p99=quantiles[2],
        kl_max=quantiles[3],
        top1_agreement=same.mean().item(),
        top1_agreement_se=ratio_standard_error([s.same_top1.sum().item() for s in scores], lengths),
        perplexity_reference=math.exp(-reference.mean().item()),
        perplexity_candidate=math.exp(-candidate.mean().item()),
        log_perplexity_ratio=(reference - candidate).mean().item(),
        log_perplexity_ratio_se=ratio_standard_error([r.sum().item() for r in log_ratios], lengths),
    )

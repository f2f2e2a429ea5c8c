"""Divergence with numbers that can be worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hy3.errors import InputError
from hy3.evaluate.bootstrap import ratio_standard_error
from hy3.evaluate.divergence import (
    ROWS_AT_ONCE,
    compare_models,
    draft_acceptance,
    measure_noise,
)
from hy3.model.decoder import load_model
from support.scripted import make_random


class TableModel:
    """Next-token probabilities as a fixed table ``[token, next]``: a real, tiny language model."""

    def __init__(self, table: list[list[float]]) -> None:
        self.table = torch.tensor(table, dtype=torch.float64)

    def forward_full(self, token_ids: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(token_ids, len(self.table)).double()

    def logits(self, hidden: Tensor) -> Tensor:
        return (hidden @ self.table).log() + 3.0  # a shift must not matter


HALF = TableModel([[0.5, 0.5], [0.5, 0.5]])
SKEW = TableModel([[0.75, 0.25], [0.5, 0.5]])


def test_by_hand() -> None:
    """Token 0 is seen twice as context (tokens 0 0 1: contexts 0 and 0), then 1 once."""
    found = compare_models(HALF, SKEW, [[0, 0, 1], [1, 0]])
    kl_after_0 = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)  # 0.1438 nats
    assert (found.documents, found.positions) == (2, 3)
    assert found.kl_mean == pytest.approx(2 * kl_after_0 / 3)
    assert found.kl_max == found.kl_median == pytest.approx(kl_after_0)
    assert found.perplexity_reference == pytest.approx(2.0)
    # True tokens: 0 after 0 (0.75), 1 after 0 (0.25), 0 after 1 (0.5).
    assert found.perplexity_candidate == pytest.approx((0.75 * 0.25 * 0.5) ** (-1 / 3))
    assert found.log_perplexity_ratio == pytest.approx(
        math.log(found.perplexity_candidate / found.perplexity_reference)
    )


def test_direction_and_top1() -> None:
    """KL is not symmetric, and an argmax that moves is a disagreement."""
    a = TableModel([[0.9, 0.1], [0.2, 0.8]])
    b = TableModel([[0.4, 0.6], [0.2, 0.8]])
    forth, back = compare_models(a, b, [[0, 1]]), compare_models(b, a, [[0, 1]])
    assert forth.kl_mean == pytest.approx(0.9 * math.log(0.9 / 0.4) + 0.1 * math.log(0.1 / 0.6))
    assert back.kl_mean == pytest.approx(0.4 * math.log(0.4 / 0.9) + 0.6 * math.log(0.6 / 0.1))
    assert forth.top1_agreement == 0.0
    assert compare_models(a, b, [[0, 1, 1, 1]]).top1_agreement == pytest.approx(2 / 3)


def test_zero_probability_of_the_reference_counts_nothing() -> None:
    sure = TableModel([[1.0, 0.0], [0.0, 1.0]])
    assert compare_models(sure, HALF, [[0, 0]]).kl_mean == pytest.approx(math.log(2))


def test_a_model_against_itself_is_zero() -> None:
    same = compare_models(SKEW, SKEW, [[0, 1, 0, 0], [1, 1]])
    assert (same.kl_mean, same.kl_max, same.top1_agreement) == (0.0, 0.0, 1.0)
    assert same.log_perplexity_ratio == 0.0


def test_long_documents_are_cut_without_a_seam() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 2, (2 * ROWS_AT_ONCE + 5,), generator=generator).tolist()
    found = compare_models(HALF, SKEW, [ids])
    kl_after_0 = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert found.positions == len(ids) - 1
    assert found.kl_mean == pytest.approx(kl_after_0 * ids[:-1].count(0) / (len(ids) - 1))


class ShapeSensitive(TableModel):
    """Its rounding depends on the length of the run, as that of a real kernel may."""

    def forward_full(self, token_ids: Tensor) -> Tensor:
        hidden = super().forward_full(token_ids)
        return hidden * (1 + 1e-6 * len(token_ids)) + 1e-6 * len(token_ids)


def test_noise_row() -> None:
    assert measure_noise(SKEW, [[0, 1, 0]]).kl_mean == 0.0
    noise = measure_noise(ShapeSensitive([[0.75, 0.25], [0.5, 0.5]]), [[0, 1, 0], [0, 0]])
    assert 0 < noise.kl_mean < 1e-6
    assert noise.positions == 3


def test_nothing_to_compare_is_an_input_error() -> None:
    with pytest.raises(InputError, match="no documents"):
        compare_models(HALF, HALF, [])
    with pytest.raises(InputError, match="two tokens") as caught:
        compare_models(HALF, HALF, [[0, 1], [1]])
    assert caught.value.where == "document 1"


def test_bootstrap_agrees_with_the_formula_for_means() -> None:
    """With equal weights the ratio is a mean, whose standard error is s / sqrt(n)."""
    values = np.random.default_rng(1).normal(size=200)
    expected = values.std() / math.sqrt(len(values))
    found = ratio_standard_error(values.tolist(), [1.0] * 200, resamples=4000)
    assert found == pytest.approx(expected, rel=0.05)


def test_bootstrap_sees_documents_not_tokens() -> None:
    """Tokens that agree within a document give a larger error than as many independent ones."""
    by_document = ratio_standard_error([0.0, 100.0] * 5, [100.0] * 10)
    by_token = ratio_standard_error([0.0, 1.0] * 500, [1.0] * 1000)
    assert by_document > 5 * by_token
    assert ratio_standard_error([3.0], [1.0]) is None


class DraftTable(TableModel):
    """Drafts from the next token's row alone, shifted: a draft layer that is right for token 0."""

    def draft_full(self, next_token_ids: Tensor, hidden: Tensor) -> Tensor:
        assert next_token_ids.shape[0] == hidden.shape[0]
        return super().forward_full(torch.zeros_like(next_token_ids))


def test_draft_acceptance_by_hand() -> None:
    """The model's choice is 0 after 0 and 1 after 1; the draft is always that after 0."""
    model = DraftTable([[0.9, 0.1], [0.2, 0.8]])
    # Drafts are judged at positions 1.. of each document: tokens 0, 1, 1 and then 1, 0.
    assert draft_acceptance(model, [[1, 0, 1, 1], [0, 1, 0]]) == pytest.approx(2 / 5)
    with pytest.raises(InputError, match="no documents"):
        draft_acceptance(model, [])


def test_real_model_against_itself_and_against_another(tmp_path: Path) -> None:
    """Two random checkpoints: the same weights agree, other weights do not."""
    first = load_model(make_random(tmp_path / "a", seed=1))
    second = load_model(make_random(tmp_path / "b", seed=2))
    documents = [list(range(5, 60)), list(range(90, 40, -1))]
    assert measure_noise(first, documents).kl_mean < 1e-3
    other = compare_models(first, second, documents)
    assert other.kl_mean > 0.01 and other.positions == 54 + 49
    assert 0 <= draft_acceptance(first, documents) <= 1

"""The sampler against distributions and formulas computed here in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from hy3.engine.request import SamplingParams
from hy3.engine.sampler import (
    _adjusted,
    choose_tokens,
    draw,
    draw_untruncated,
    token_logprobs,
    uniform,
)
from support.chunks import chunk, greedy

PROBS = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
LOGITS = torch.from_numpy(np.log(PROBS)).float()
EVERYWHERE = (torch.arange(20000) + 0.5) / 20000


def shares(top_k=5, top_p=1.0, min_p=0.0, temperature=1.0):
    """How often each token is drawn over an even grid of uniform numbers."""
    rows = len(EVERYWHERE)
    columns = [torch.full((rows,), v) for v in (temperature, top_k, top_p, min_p)]
    tokens = draw(LOGITS.repeat(rows, 1), EVERYWHERE, *columns)
    return np.bincount(tokens.numpy(), minlength=5) / rows


def renormalised(*kept):
    probs = np.where(np.isin(np.arange(5), kept), PROBS, 0)
    return probs / probs.sum()


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, PROBS),
        ({"top_k": 1}, renormalised(0)),
        ({"top_k": 3}, renormalised(0, 1, 2)),
        ({"top_p": 0.69}, renormalised(0, 1)),
        ({"top_p": 0.71}, renormalised(0, 1, 2)),
        ({"top_p": 1e-6}, renormalised(0)),
        ({"min_p": 0.3}, renormalised(0, 1, 2)),
        ({"min_p": 1.0}, renormalised(0)),
        # of the three left by top_k, 0.4 / 0.85 + 0.3 / 0.85 reach 0.8
        ({"top_k": 3, "top_p": 0.8}, renormalised(0, 1)),
        ({"temperature": 0.5}, PROBS**2 / (PROBS**2).sum()),
    ],
)
def test_truncation(params, expected):
    np.testing.assert_allclose(shares(**params), expected, atol=1e-3)


def test_untruncated_draw_has_the_softmax_distribution():
    rows = len(EVERYWHERE)
    tokens = draw_untruncated(LOGITS.repeat(rows, 1), EVERYWHERE, torch.full((rows,), 2.0))
    expected = PROBS**0.5 / (PROBS**0.5).sum()
    np.testing.assert_allclose(np.bincount(tokens.numpy()) / rows, expected, atol=1e-3)


def test_the_ends_of_the_interval_never_give_an_impossible_token():
    logits = torch.tensor([[-np.inf, 0.0, 3.0, 0.1, -np.inf]]).repeat(2, 1)
    ends = torch.tensor([0.0, 1 - 2**-24])
    assert draw_untruncated(logits, ends, torch.ones(2)).tolist() == [1, 3]
    tokens = draw(logits, ends, torch.ones(2), torch.tensor([2, 2]), torch.ones(2), torch.zeros(2))
    assert set(tokens.tolist()) <= {2, 3}


def test_uniform_streams_look_uniform_and_independent():
    values = np.array([[uniform(seed, i) for i in range(200)] for seed in range(50)])
    assert (values >= 0).all() and (values < 1).all()
    assert stats.kstest(values.ravel(), "uniform").pvalue > 1e-3
    along, across = values[:, :-1] * values[:, 1:], values[:-1] * values[1:]
    for products in (along, across):
        assert abs(products.mean() - 0.25) < 4 * products.std() / products.size**0.5


def test_a_seed_gives_the_same_token_in_any_company():
    params = SamplingParams(max_tokens=9, temperature=0.7, top_p=0.9, seed=3)
    plain = SamplingParams(max_tokens=9, temperature=1.3, seed=4)
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    alone = choose_tokens(logits[:1], [chunk(params)])
    (_, among, _) = choose_tokens(
        torch.cat([logits[1:3], logits[:1], logits[3:]]),
        [chunk(plain, drafts=[1]), chunk(params), chunk(greedy())],
    )
    assert [among] == alone


def test_rows_after_drafts_use_the_numbers_of_their_output_index():
    params = SamplingParams(max_tokens=9, seed=3)
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    (together,) = choose_tokens(logits, [chunk(params, output=[1], drafts=[2, 4])])
    singly = [
        choose_tokens(logits[i : i + 1], [chunk(params, output=[1, 2, 4][: i + 1])])[0][0]
        for i in range(3)
    ]
    assert together == singly


def test_penalties_count_the_prompt_the_output_and_the_drafts_before_a_row():
    params = greedy(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=2.0)
    logits = torch.tensor([[2.0, -2.0, 1.0, 1.4, 0.0]]).repeat(3, 1)
    work = chunk(params, prompt=[0], output=[1, 1, 3], drafts=[3, 4])
    # row 0: 2 / 2; -2 * 2 - 2 * 0.25 - 0.5; untouched; 1.4 / 2 - 0.25 - 0.5; untouched
    expected = np.array([1.0, -5.0, 1.0, -0.05, 0.0])
    after_3 = expected - [0, 0, 0, 0.25, 0]
    after_4 = after_3 - [0, 0, 0, 0, 0.75]
    adjusted = _adjusted(logits, [work]).numpy()
    np.testing.assert_allclose(adjusted, [expected, after_3, after_4], atol=1e-6)
    counts = work.sequence.history.output_counts.tolist()
    assert counts == [0, 2, 0, 1, 0], "the drafts are taken back"


def test_bias_and_greedy():
    logits = LOGITS[None]
    assert choose_tokens(logits, [chunk(greedy())]) == [[0]]
    assert choose_tokens(logits, [chunk(greedy(logit_bias={4: 3.0}))]) == [[4]]
    assert choose_tokens(logits, [chunk(greedy(logit_bias={0: -100.0}))]) == [[1]]
    torch.testing.assert_close(logits, LOGITS[None], rtol=0, atol=0)


def test_min_tokens_forbids_stops_row_by_row():
    logits = LOGITS.repeat(3, 1)
    work = chunk(greedy(min_tokens=3), output=[2], drafts=[1, 1], stop_ids=[0])
    assert choose_tokens(logits, [work]) == [[1, 1, 0]]


def test_temperature_below_the_limit_is_greedy():
    params = SamplingParams(max_tokens=1, temperature=1e-6, seed=1)
    assert choose_tokens(LOGITS[None] * 1e4, [chunk(params)]) == [[0]]


def test_logprobs_are_those_of_the_raw_logits():
    logits = torch.randn(2, 7, generator=torch.Generator().manual_seed(5)) * 3
    expected = logits.double().numpy()
    expected = expected - np.log(np.exp(expected).sum(1, keepdims=True))
    for row, got in enumerate(token_logprobs(logits, [6, 2], 3)):
        assert got.token_id == [6, 2][row]
        assert got.logprob == pytest.approx(expected[row, got.token_id], abs=1e-5)
        best = np.argsort(-expected[row])[:3]
        assert [token for token, _ in got.top] == best.tolist()
        assert [value for _, value in got.top] == pytest.approx(expected[row, best], abs=1e-5)
    assert token_logprobs(logits, [6, 2], 0)[0].top == ()

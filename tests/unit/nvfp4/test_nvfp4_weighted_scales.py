"""The rules under column weights, against a sweep of all 119 codes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hy3.nvfp4.codec import E2M1_VALUES, E4M3_VALUES
from hy3.nvfp4.scales import (
    RULES,
    code_shifts,
    group_errors,
    group_weights,
    scaled_groups,
    search_scales,
    sum_group,
    tensor_scale,
)
from support.distributions import EDGES, NAMES, WEIGHT_KINDS, make_column_weights, make_weight

SLICE_ROWS = 64


def sweep(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Least errors [groups] over codes 8..126: fp32 as the rules define them, and in float64."""
    least = torch.full(x.shape[:-1], float("inf"))
    least64 = least.double()
    for value in E4M3_VALUES[8:127].tolist():
        distance = x
        for magnitude in E2M1_VALUES[1:].tolist():
            distance = torch.minimum(distance, (x - magnitude * value).abs())
        least = torch.minimum(least, sum_group(distance * distance * h))
        least64 = torch.minimum(least64, (distance.double().square() * h.double()).sum(-1))
    return least, least64


def check_slice(weight: Tensor, t: float, column_weights: Tensor) -> None:
    x, h = scaled_groups(weight, t), group_weights(column_weights)
    assert h is not None
    codes = {rule: search_scales(weight, t, rule, column_weights) for rule in RULES}
    errors = {rule: group_errors(x, codes[rule], h) for rule in RULES}
    assert bool((errors["exact"] <= errors["four-over-six"]).all())
    assert bool((errors["four-over-six"] <= errors["max"]).all())
    assert bool((codes["exact"] >= 8).all()) and bool((codes["exact"] <= 126).all())
    least, least64 = sweep(x, h)
    assert torch.equal(errors["exact"], least)
    distance = (x - nearest(x, codes["exact"])).double()
    chosen64 = (distance.square() * h.double()).sum(-1)
    assert bool((chosen64 <= least64 * (1 + 1e-6)).all())


def nearest(x: Tensor, codes: Tensor) -> Tensor:
    """Each x rounded under its group's code, by comparing all eight distances."""
    values = E4M3_VALUES[codes.long()][..., None, None] * E2M1_VALUES  # [..., 1, 8]
    index = (x[..., None] - values).abs().argmin(-1, keepdim=True)
    return values.expand(*x.shape, 8).gather(-1, index).squeeze(-1)


def check_rules(name: str, kind: str, groups: int) -> None:
    weight = make_weight(name, groups)
    t = tensor_scale(float(weight.abs().max()))
    column_weights = make_column_weights(kind, weight.shape[1])
    for rows in weight.split(SLICE_ROWS):
        check_slice(rows, t, column_weights)


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
@pytest.mark.parametrize("name", NAMES + EDGES)
def test_weighted_exact_equals_the_sweep(name: str, kind: str) -> None:
    check_rules(name, kind, groups=256)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", WEIGHT_KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_weighted_exact_equals_the_sweep_on_262144_groups(name: str, kind: str) -> None:
    check_rules(name, kind, groups=262_144)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 2.0**100, width=32), min_size=16, max_size=16), st.integers(0, 99))
def test_any_weights(weights: list[float], seed: int) -> None:
    weight = make_weight("t2", 64, seed).reshape(64, 16)
    check_slice(weight, tensor_scale(float(weight.abs().max())), torch.tensor(weights))


def test_the_window_of_the_plain_search_would_miss_the_best() -> None:
    """One huge weight on a small element: the best code lies far under amax / 6."""
    weight = torch.ones(1, 16, dtype=torch.bfloat16)
    weight[0, 0] = 2.0**-6 * 1.25
    h = torch.full((16,), 2.0**-40)
    h[0] = 1.0
    plain = int(search_scales(weight, 2.0**-10, "exact"))
    weighted = int(search_scales(weight, 2.0**-10, "exact", h))
    assert plain - weighted > 16
    check_slice(weight, 2.0**-10, h)


@pytest.mark.parametrize("rule", RULES)
def test_equal_weights_change_nothing(rule: str) -> None:
    weight = make_weight("t4", 512)
    t = tensor_scale(float(weight.abs().max()))
    for h in (1.0, 2.0**-40, 2.0**40):  # powers of two scale every rounded term alike
        weighted = search_scales(weight, t, rule, torch.full((weight.shape[1],), h))
        assert torch.equal(weighted, search_scales(weight, t, rule))


def test_groups_without_any_weight_get_the_code_of_rule_max() -> None:
    weight = make_weight("gauss", 128)
    h = torch.ones(weight.shape[1])
    h[16:48] = 0
    codes = search_scales(weight, 2.0**-9, "exact", h)
    assert torch.equal(codes[:, 1:3], search_scales(weight, 2.0**-9, "max")[:, 1:3])
    assert torch.equal(codes[:, 3:], search_scales(weight, 2.0**-9, "exact")[:, 3:])


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), 2.0**101])
def test_weights_out_of_range_are_refused(bad: float) -> None:
    weight = make_weight("gauss", 64)
    h = torch.ones(weight.shape[1])
    h[5] = bad
    with pytest.raises(AssertionError):
        search_scales(weight, 1.0, "exact", h)


def test_the_sweep_would_notice_an_ignored_weight() -> None:
    weight = make_weight("gauss", 256)
    t = tensor_scale(float(weight.abs().max()))
    column_weights = make_column_weights("spread", weight.shape[1])
    x, h = scaled_groups(weight, t), group_weights(column_weights)
    assert h is not None
    unweighted = group_errors(x, search_scales(weight, t, "exact"), h)
    assert bool((unweighted > sweep(x, h)[0]).float().mean() > 0.5)


def test_shifts_count_each_group_once() -> None:
    codes = torch.tensor([[8, 50], [126, 60]], dtype=torch.uint8)
    under_max = torch.tensor([[40, 50], [100, 62]], dtype=torch.uint8)
    expected = torch.zeros(33, dtype=torch.int64)
    expected[0] = expected[16] = expected[32] = expected[14] = 1  # -32, 0, 26, -2
    assert torch.equal(code_shifts(codes, under_max), expected)

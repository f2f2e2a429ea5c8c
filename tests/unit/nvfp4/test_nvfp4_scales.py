"""The scale rules against a sweep of all 119 codes, and t against rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hy3.nvfp4.codec import E2M1_VALUES, E4M3_VALUES
from hy3.nvfp4.scales import (
    RULES,
    group_errors,
    scaled_groups,
    search_scales,
    sum_group,
    tensor_scale,
)
from support.distributions import NAMES, make_weight

SLICE_ROWS = 64  # of 64 groups each: keeps the sweep's arrays in the cache


def independent_error(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Squared error in float64 by trying all eight values for every element: [groups]."""
    x = x.double()
    distance = x
    for value in E2M1_VALUES[1:].tolist():
        distance = torch.minimum(distance, (x - value * scale).abs())
    return distance.square().sum(-1)


def check_rules(name: str, groups: int) -> None:
    weight = make_weight(name, groups)
    t = tensor_scale(float(weight.abs().max()))
    assert sum(count_mismatches(rows, t) for rows in weight.split(SLICE_ROWS)) == 0


def count_mismatches(weight: torch.Tensor, t: float) -> int:
    """Groups whose exact scale has an error beyond the sweep's; the other promises are asserted."""
    x = scaled_groups(weight, t).flatten(0, 1)  # [groups, 16]
    codes = {rule: search_scales(weight, t, rule).flatten() for rule in RULES}
    errors = {rule: group_errors(x, codes[rule]) for rule in RULES}
    assert bool((errors["exact"] <= errors["four-over-six"]).all())
    assert bool((errors["four-over-six"] <= errors["max"]).all())
    assert all(int(c.min()) >= 8 and int(c.max()) <= 126 for c in codes.values())
    zero = x.amax(-1) == 0
    assert all(bool((c[zero] == 0x20).all()) for c in codes.values())
    best = torch.full((len(x),), float("inf"), dtype=torch.float64)
    chosen = torch.zeros(len(x), dtype=torch.float64)
    for code in range(8, 127):
        error = independent_error(x, float(E4M3_VALUES[code]))
        best = torch.minimum(best, error)
        chosen = torch.where(codes["exact"] == code, error, chosen)
    return int((chosen > best * (1 + 1e-6)).sum())


@pytest.mark.parametrize("name", NAMES)
def test_exact_equals_the_sweep(name: str) -> None:
    check_rules(name, groups=2048)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_exact_equals_the_sweep_on_262144_groups(name: str) -> None:
    check_rules(name, groups=262_144)


@pytest.mark.parametrize(
    ("name", "rule", "relative"),
    [("gauss", "max", 0.00904), ("gauss", "exact", 0.0066), ("t4", "max", 0.00845)],
)
def test_relative_error_is_the_known_one(name: str, rule: str, relative: float) -> None:
    weight = make_weight(name, 32_768)
    t = tensor_scale(float(weight.abs().max()))
    x = scaled_groups(weight, t)
    error = (
        group_errors(x, search_scales(weight, t, rule)).double().sum() / x.double().square().sum()
    )
    assert float(error) == pytest.approx(relative, rel=0.02)


def test_the_sweep_would_notice_a_wrong_code() -> None:
    weight = make_weight("gauss", 1024)
    t = tensor_scale(float(weight.abs().max()))
    x = scaled_groups(weight, t)
    codes = search_scales(weight, t, "exact")
    worse = group_errors(x, codes + 1) > group_errors(x, codes) * (1 + 1e-6)
    assert bool(worse.all())


def test_equal_errors_take_the_larger_code() -> None:
    # One value of 6 * 2^k is met exactly by several scales: the largest start wins.
    weight = torch.zeros(1, 16, dtype=torch.bfloat16)
    weight[0, 3] = 6.0
    t = tensor_scale(6.0)
    code = int(search_scales(weight, t, "exact")[0, 0])
    x = scaled_groups(weight, t)
    exact = [c for c in range(8, 127) if float(group_errors(x, torch.tensor([[c]]))) == 0.0]
    start = min(c for c in range(8, 127) if float(E4M3_VALUES[c]) * 3.5 >= 6.0 / t)
    assert code == max(c for c in exact if c <= start)


def test_the_sum_runs_from_the_first_element() -> None:
    big, small = torch.tensor(2.0**24), torch.tensor(1.0)
    first = torch.cat([big[None], small.expand(15)])
    assert float(sum_group(first)) == 2.0**24  # each 1 is lost against 2^24
    assert float(sum_group(first.flip(0))) == 2.0**24 + 16  # 15 + 2^24 rounds to even


@given(st.floats(0, 2.0**127, width=32))
def test_tensor_scale_is_the_smallest_power_of_two(amax: float) -> None:
    t = tensor_scale(amax)
    if amax == 0:
        assert t == 1.0
        return
    wanted = Fraction(amax) / 1568
    assert Fraction(t) >= wanted
    assert t == 2.0**-126 or Fraction(t) / 2 < wanted


@pytest.mark.parametrize("power", [-126, -9, 0, 7, 117])
def test_tensor_scale_at_its_boundary(power: int) -> None:
    amax = 1568 * 2.0**power
    assert tensor_scale(amax) == 2.0**power
    assert tensor_scale(amax * (1 + 2**-23)) == 2.0 ** (power + 1)

"""The numba scale search gives the oracle's bytes, on every distribution and at the edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hy3.kernels.scale_search import Quantized, largest_magnitude, quantize_bits
from hy3.nvfp4.scales import RULES, tensor_scale
from support.distributions import NAMES, make_weight

FIELDS = ("packed", "scales", "errors", "max_errors", "energies", "shifts")


def bits_of(name: str, groups: int) -> NDArray[np.uint16]:
    return make_weight(name, groups).view(torch.int16).numpy().view(np.uint16)


def differing(one: Quantized, other: Quantized) -> list[str]:
    return [f for f in FIELDS if getattr(one, f).tobytes() != getattr(other, f).tobytes()]


def check(bits: NDArray[np.uint16], rule: str, t: float | None = None) -> Quantized:
    t = tensor_scale(largest_magnitude(bits)) if t is None else t
    fast = quantize_bits.named("numba")(bits, t, rule)
    assert differing(fast, quantize_bits.oracle(bits, t, rule)) == []
    return fast


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NAMES)
def test_bytes_equal_the_oracle(name: str, rule: str) -> None:
    check(bits_of(name, 1024), rule)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NAMES)
def test_bytes_equal_the_oracle_on_262144_groups(name: str, rule: str) -> None:
    check(bits_of(name, 262_144), rule)


@pytest.mark.parametrize("groups", [1, 15, 63, 64, 65, 130])
def test_any_number_of_groups(groups: int) -> None:
    check(bits_of("gauss", 256).reshape(-1)[: groups * 16].reshape(groups, 16), "exact")


FINITE = st.integers(0, 0x7F7F) | st.integers(0x8000, 0xFF7F)


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.uint16, (3, 32), elements=FINITE), st.sampled_from(RULES))
def test_any_finite_patterns(bits: NDArray[np.uint16], rule: str) -> None:
    """Subnormals, signed zeros and the largest numbers side by side."""
    check(bits, rule)


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.uint16, (2, 64), elements=st.integers(0x3F00, 0x4180) | st.just(0)),
    st.integers(-4, 4),
    st.sampled_from(RULES),
)
def test_any_tensor_scale(bits: NDArray[np.uint16], power: int, rule: str) -> None:
    """A joint scale may be far above what this matrix alone needs, or saturate it."""
    check(bits, rule, 2.0**power)


def test_a_view_is_read_in_its_own_order() -> None:
    wide = bits_of("gauss", 256)
    check(wide[::2, 64:128], "exact")


def test_zero_groups_get_the_agreed_code() -> None:
    bits = bits_of("gauss", 128).copy()
    bits[0, :16], bits[1, 16:32] = 0, 0x8000
    result = check(bits, "exact")
    assert result.scales[0, 0] == 0x20 and result.scales[1, 1] == 0x20
    assert not result.packed[0, :8].any() and not result.packed[1, 8:16].any()
    assert result.errors[0, 0] == 0 and result.energies[1, 1] == 0


def test_all_zero_and_saturated_matrices() -> None:
    assert (check(np.zeros((4, 32), np.uint16), "exact").scales == 0x20).all()
    check(np.full((4, 32), 0x7F7F, np.uint16), "exact")
    check(np.full((4, 32), 0x0001, np.uint16), "exact")


def test_largest_magnitude() -> None:
    assert largest_magnitude(np.array([[0x3F80, 0xC040]], np.uint16)) == 3.0
    assert largest_magnitude(np.array([0x8000], np.uint16)) == 0.0
    assert largest_magnitude(np.array([0x3F80, 0xFF80], np.uint16)) == float("inf")
    assert np.isnan(largest_magnitude(np.array([0x7F81, 0x7F80], np.uint16)))


def test_a_planted_difference_is_seen() -> None:
    bits = bits_of("gauss", 128)
    one = quantize_bits.oracle(bits, 2.0**-8, "exact")
    other = quantize_bits.oracle(bits, 2.0**-8, "exact")
    other.scales[0, 0] += 1
    assert differing(one, other) == ["scales"]

"""The numba scale search gives the oracle's bytes, on every distribution and at the edges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hy3.kernels.scale_search import Quantized, largest_magnitude, quantize_bits
from hy3.nvfp4.scales import RULES, tensor_scale
from support.distributions import (
    EDGES,
    NAMES,
    WEIGHT_KINDS,
    make_column_weights,
    make_weight,
)

FIELDS = ("packed", "scales", "errors", "max_errors", "energies", "shifts")


def bits_of(name: str, groups: int) -> NDArray[np.uint16]:
    return make_weight(name, groups).view(torch.int16).numpy().view(np.uint16)


def differing(one: Quantized, other: Quantized) -> list[str]:
    return [f for f in FIELDS if getattr(one, f).tobytes() != getattr(other, f).tobytes()]


def check(
    bits: NDArray[np.uint16],
    rule: str,
    t: float | None = None,
    column_weights: NDArray[np.float32] | None = None,
) -> Quantized:
    t = tensor_scale(largest_magnitude(bits)) if t is None else t
    fast = quantize_bits.named("numba")(bits, t, rule, column_weights)
    assert differing(fast, quantize_bits.oracle(bits, t, rule, column_weights)) == []
    return fast


def weights_of(kind: str | None, columns: int) -> NDArray[np.float32] | None:
    return None if kind is None else make_column_weights(kind, columns).numpy()


@pytest.mark.parametrize("kind", [None, *WEIGHT_KINDS])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NAMES + EDGES)
def test_bytes_equal_the_oracle(name: str, rule: str, kind: str | None) -> None:
    bits = bits_of(name, 512)
    check(bits, rule, None, weights_of(kind, bits.shape[1]))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", [None, "spread"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NAMES + EDGES)
def test_bytes_equal_the_oracle_on_262144_groups(name: str, rule: str, kind: str | None) -> None:
    bits = bits_of(name, 262_144)
    check(bits, rule, None, weights_of(kind, bits.shape[1]))


@pytest.mark.parametrize("kind", [None, "spread"])
@pytest.mark.parametrize("shape", [(1, 1), (15, 1), (5, 3), (16, 1), (17, 1), (1, 31), (7, 19)])
def test_any_number_of_groups(shape: tuple[int, int], kind: str | None) -> None:
    """Blocks of 16 groups that begin anywhere in a row, and a last one that is not full."""
    rows, row_groups = shape
    bits = bits_of("t4", 256).reshape(-1)[: rows * row_groups * 16].reshape(rows, -1)
    result = check(bits, "exact", None, weights_of(kind, bits.shape[1]))
    assert int(result.shifts.sum()) == rows * row_groups


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


WEIGHTS = st.floats(0, 2.0**100, width=32)


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.uint16, (4, 48), elements=FINITE),
    hnp.arrays(np.float32, 48, elements=WEIGHTS | st.just(0.0)),
    st.sampled_from(RULES),
)
def test_any_weights(
    bits: NDArray[np.uint16], column_weights: NDArray[np.float32], rule: str
) -> None:
    check(bits, rule, None, column_weights)


def test_a_view_is_read_in_its_own_order() -> None:
    wide = bits_of("gauss", 256)
    check(wide[::2, 64:128], "exact")


def test_an_address_may_be_odd() -> None:
    bits = bits_of("gauss", 128)
    raw = np.zeros(bits.nbytes + 1, np.uint8)
    raw[1:] = bits.reshape(-1).view(np.uint8)
    check(raw[1:].view(np.uint16).reshape(bits.shape), "exact")


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


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), 2.0**101])
@pytest.mark.parametrize("run", [quantize_bits.named("numba"), quantize_bits.oracle])
def test_weights_out_of_range_are_refused(run: Callable[..., Quantized], bad: float) -> None:
    column_weights = np.ones(1024, np.float32)
    column_weights[1000] = bad
    with pytest.raises(AssertionError):
        run(bits_of("gauss", 64), 1.0, "exact", column_weights)


def test_a_matrix_without_rows() -> None:
    result = quantize_bits.named("numba")(np.zeros((0, 32), np.uint16), 1.0, "exact")
    assert result.packed.shape == (0, 16) and result.scales.shape == (0, 2)
    assert not result.shifts.any()


def test_a_planted_difference_is_seen() -> None:
    bits = bits_of("gauss", 128)
    one = quantize_bits.oracle(bits, 2.0**-8, "exact")
    other = quantize_bits.oracle(bits, 2.0**-8, "exact")
    other.scales[0, 0] += 1
    assert differing(one, other) == ["scales"]

"""Choice of twin: first willing one, the oracle otherwise, and HY3_KERNELS=torch."""

from __future__ import annotations

import pytest

from hy3.errors import InputError
from hy3.kernels import dispatch
from hy3.kernels.dispatch import operation, read_choice


@pytest.fixture
def double():
    @operation
    def double(x: int) -> str:
        """Twice x."""
        return f"oracle {2 * x}"

    @double.twin("small", when=lambda x: x < 10)
    def small(x: int) -> str:
        return f"small {2 * x}"

    @double.twin("any", when=lambda x: x < 100)
    def anything(x: int) -> str:
        return f"any {2 * x}"

    return double


def test_first_willing_twin_runs(double):
    assert [double(3), double(30), double(300)] == ["small 6", "any 60", "oracle 600"]


def test_each_implementation_can_be_called(double):
    assert double.named("torch")(3) == double.oracle(3) == "oracle 6"
    assert double.named("any")(3) == "any 6"
    with pytest.raises(KeyError):
        double.named("triton")


def test_operation_keeps_its_documentation(double):
    assert (double.__name__, double.__doc__) == ("double", "Twice x.")


def test_oracles_can_be_forced(double, monkeypatch):
    monkeypatch.setattr(dispatch, "TWINS_ALLOWED", read_choice("torch"))
    assert double(3) == "oracle 6"


def test_environment_values():
    assert read_choice("") and read_choice("auto") and not read_choice("torch")
    with pytest.raises(InputError, match="HY3_KERNELS is 'numba'"):
        read_choice("numba")

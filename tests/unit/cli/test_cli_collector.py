"""The collector rests while headers are read, and works again afterwards, faults or not."""

from __future__ import annotations

import gc

import pytest

from hy3.cli.collector import collector_at_rest


def test_the_collector_rests_and_works_again() -> None:
    assert gc.isenabled()
    with collector_at_rest():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), collector_at_rest():
        raise KeyError
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_at_rest():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()

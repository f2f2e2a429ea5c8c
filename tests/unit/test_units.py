"""Printed units."""

from __future__ import annotations

import pytest

from hy3.units import format_bytes, format_seconds


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (23_840_000, "23.8 MB"),
        (180_826_481_152, "181 GB"),
        (999_600, "1.00 MB"),
    ],
)
def test_format_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.85, "850 ms"), (12.34, "12.3 s"), (245, "4 min 05 s"), (7380, "2 h 03 min")],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text

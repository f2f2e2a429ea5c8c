"""Cells of the tables."""

from __future__ import annotations

from typing import Any

import pytest

from hy3.report.table import bench_table, number, shares

RUN: dict[str, Any] = {
    "concurrency": 6,
    "requests": 12,
    "ok": 12,
    "failed": {},
    "input_tokens": 3072,
    "output_tokens": 1536,
    "ttft_ms": {"p50": 85.26, "p99": 1727.9},
    "tpot_ms": None,
    "tok_s_stream": None,
    "tok_s_total": 59.66,
    "tok_s_steady": 61.0,
    "acceptance": {"per_position": [0.7, 0.2], "conditional": [0.7, 2 / 7]},
}


def test_bench_row() -> None:
    table = bench_table(
        {
            "server": {"model": "m", "url": "http://x/v1"},
            "method": {
                **{"api": "chat", "seed": 7, "counted_by": ["token_ids"]},
                "formulas": {"tpot": "f"},
            },
            "runs": [RUN, RUN | {"ok": 10, "failed": {"cut": 1, "timeout": 1}}],
        }
    )
    assert table.title == "m at http://x/v1, chat"
    assert len(table.columns) == len(table.rows[0])
    assert table.rows[0] == (
        *("6", "12/12", "3072", "1536", "85.3 / 1728", "-", "-", "59.7", "61.0"),
        *("70 / 20 %", "70 / 29 %"),
    )
    assert table.rows[1][1] == "10/12 (1 cut, 1 timeout)"
    assert "token_ids" in table.notes[0]


@pytest.mark.parametrize(
    ("values", "text"),
    [([], "-"), ([0.714], "71 %"), ([1.0, None], "100 / - %")],
)
def test_shares(values: list[float | None], text: str) -> None:
    assert shares(values) == text


def test_number() -> None:
    assert (number(None), number(1.26), number(1.26, 2)) == ("-", "1.3", "1.26")

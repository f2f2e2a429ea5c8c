"""Readable tables out of result JSON: columns, rows and a footer, all plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MISSING = "-"


@dataclass(frozen=True)
class TableText:
    """A table ready to print; ``notes`` are lines to put below it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def bench_table(result: Mapping[str, Any]) -> TableText:
    """The table of a ``hy3.bench/1`` object: one row per concurrency."""
    server, method = result["server"], result["method"]
    counted = ", ".join(method["counted_by"]) or "nothing"
    return TableText(
        title=f"{server['model']} at {server['url']}, {method['api']}",
        columns=(
            "streams",
            "ok",
            "in",
            "out",
            "TTFT ms\np50/p99",
            "TPOT ms\np50/p99",
            "tok/s\nstream",
            "tok/s\ntotal",
            "tok/s\nsteady",
            "accepted",
            "given\nprevious",
        ),
        rows=tuple(_bench_row(run) for run in result["runs"]),
        notes=(
            f"tokens counted by {counted}; TPOT = {method['formulas']['tpot']}",
            "accepted: share of drafting steps that took position 1, 2, ...; "
            "given previous: of those that took the position before",
            f"--seed {method['seed']} repeats these prompts",
        ),
    )


def _bench_row(run: Mapping[str, Any]) -> tuple[str, ...]:
    failed = ", ".join(f"{count} {reason}" for reason, count in run["failed"].items())
    ok = f"{run['ok']}/{run['requests']}" + (f" ({failed})" if failed else "")
    acceptance = run["acceptance"]
    return (
        str(run["concurrency"]),
        ok,
        str(run["input_tokens"]),
        str(run["output_tokens"]),
        _two(run["ttft_ms"]),
        _two(run["tpot_ms"]),
        number(run["tok_s_stream"]),
        number(run["tok_s_total"]),
        number(run["tok_s_steady"]),
        shares(acceptance["per_position"]),
        shares(acceptance["conditional"]),
    )


def number(value: float | None, digits: int = 1) -> str:
    """A fixed-point number, or a dash for None."""
    return MISSING if value is None else f"{value:.{digits}f}"


def shares(values: Sequence[float | None]) -> str:
    """Shares as percentages, for example ``71 / 20 %``."""
    if not values:
        return MISSING
    return " / ".join(MISSING if v is None else f"{v:.0%}"[:-1] for v in values) + " %"


def _two(distribution: Mapping[str, float] | None) -> str:
    if distribution is None:
        return MISSING
    return " / ".join(_short(distribution[name]) for name in ("p50", "p99"))


def _short(value: float) -> str:
    """Three or more significant digits, so that both ends of a wide range stay narrow."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"

"""What became what, by class of tensors: the rows of the terminal, the card and ``--json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hy3.quantize.plan import Plan, PlanLine
from hy3.quantize.stats import StatsByKey, WeightStats, stats_by_class
from hy3.units import format_bytes

_PLANNED = ("class", "stored as", "tensors", "from", "to")


@dataclass(frozen=True)
class ClassRow:
    """One class as planned, with its statistics where it was encoded."""

    line: PlanLine
    stats: WeightStats | None

    def as_json(self) -> dict[str, Any]:
        """The row's numbers; the last three are None where nothing was encoded."""
        stats = self.stats
        return vars(self.line) | {
            "relative_squared_error": stats and stats.relative_error,
            "relative_squared_error_max_rule": stats and stats.relative_max_error,
            "change_percent": stats and stats.change_percent,
        }

    def cells(self) -> tuple[str, ...]:
        """The row as text: all columns of ``summary_table``."""
        line, stats = self.line, self.stats
        sizes = (format_bytes(line.source_bytes), format_bytes(line.output_bytes))
        planned = (line.label, line.format, str(line.tensors), *sizes)
        if stats is None:
            return (*planned, "", "", "")
        errors = (f"{stats.relative_error:.5f}", f"{stats.relative_max_error:.5f}")
        return (*planned, *errors, f"{stats.change_percent:+.1f} %")


def class_rows(plan: Plan, stats: StatsByKey) -> list[ClassRow]:
    """Largest class first."""
    by_class = stats_by_class(stats)
    return [
        ClassRow(line, by_class.get(line.label) if line.quantized else None)
        for line in plan.lines()
    ]


def summary_table(plan: Plan, stats: StatsByKey) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows; without statistics only what is planned."""
    rows = [row.cells() for row in class_rows(plan, stats)]
    if not stats:
        return _PLANNED, [cells[: len(_PLANNED)] for cells in rows]
    rule = plan.parameters.scales
    if rule == "max":  # nothing to compare with
        return (*_PLANNED, "error"), [cells[: len(_PLANNED) + 1] for cells in rows]
    return (*_PLANNED, f"error ({rule})", "error (max)", "change"), rows

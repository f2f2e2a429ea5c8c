"""``Calibration``: how far real engines stay below the roofline, fitted on published measurements.

The table is speed.toml, which ``benchmarks/plan_accuracy.py`` fits and writes; a kind of device and
a mode share one efficiency and one floor of a step, and no constant rests on a single row.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

EAGER, GRAPHS = "eager", "graphs"


@dataclass(frozen=True)
class Calibration:
    """Constants of one kind of device, in one mode."""

    kind: str
    mode: str  # EAGER or GRAPHS
    efficiency: float  # share of the memory's bandwidth that a step reaches
    floor_per_layer_s: float  # launches, sampling and scheduling of a pass, for each layer
    low: float  # measured speed over predicted, at the lower and the upper end of the interval
    high: float
    rows: int  # that it was fitted on
    sources: int
    confidence: str  # what a reader must know before trusting it
    draft_floor_s: float  # a draft beside its bytes, the same for all kinds and modes
    shortest_step_s: float  # of the kind's measured rows
    most_step_tokens: int  # in one step of those

    @property
    def lost_in_scatter_s(self) -> float:
        """A cost that every step has, up to this, would not show in how the rows scatter.

        The interval takes as much for scatter, even of the row whose step is the shortest.
        """
        return (self.high - 1) * self.shortest_step_s


def load_calibrations() -> dict[tuple[str, str], Calibration]:
    """All of them, by kind and mode."""
    text = resources.files("hy3.plan").joinpath("speed.toml").read_text(encoding="utf-8")
    return parse_calibrations(tomllib.loads(text))


def parse_calibrations(tables: dict[str, Any]) -> dict[tuple[str, str], Calibration]:
    """From the parsed file: kind -> mode -> constants, and one floor of drafts for all."""
    found = {}
    draft_floor_s = tables["drafts"]["floor_ms"] / 1e3
    for kind, modes in tables.items():
        if kind == "drafts":
            continue
        for mode, entry in modes.items():
            found[kind, mode] = Calibration(
                kind=kind,
                mode=mode,
                efficiency=entry["efficiency"],
                floor_per_layer_s=entry["floor_us_per_layer"] / 1e6,
                low=entry["low"],
                high=entry["high"],
                rows=entry["rows"],
                sources=entry["sources"],
                confidence=entry["confidence"],
                draft_floor_s=draft_floor_s,
                shortest_step_s=entry["shortest_step_ms"] / 1e3,
                most_step_tokens=entry["most_step_tokens"],
            )
    return found

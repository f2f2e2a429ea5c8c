"""Pictures as SVG; the same data give the same bytes, wherever and whenever they are drawn.

Nothing of the place shows: matplotlib's own defaults hold whatever a matplotlibrc says, ids are
salted, no date or version is written, text stays text so that no font file is asked for outlines.
The ground is opaque white, so a page in dark colours shows them as well. Colours are those of Okabe
and Ito, which the colour-blind can tell apart; markers and dashes say the same.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_HATCHES = ("", "//", "..")
_EMPTY = "#eeeeee"
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hy3",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
}
_WIDTH_INCHES, _HEIGHT_INCHES, _LEGEND_ROW_INCHES = 7.2, 2.9, 0.2
# From here on a linear axis would press the lower curves flat.
_LOGARITHMIC_RATIO = 4.0


@dataclass(frozen=True)
class Curve:
    """One class: a value for each layer, and the same under the rule it is compared with.

    Without layers it has one value, which belongs to none of them.
    """

    label: str
    layers: tuple[int, ...]
    values: tuple[float, ...]
    reference: tuple[float, ...]


@dataclass(frozen=True)
class Part:
    """What lies on the part before it, equally high in every bar."""

    label: str
    size: float
    empty: bool = False  # drawn as room that nothing takes


@dataclass(frozen=True)
class Limit:
    """A height that the bars are measured against."""

    label: str
    height: float


def stacked_bars(
    names: Sequence[str], parts: Sequence[Part], limits: Sequence[Limit], unit: str
) -> bytes:
    """SVG of equal bars, lowest part first; the legend has them from the top, with their sizes."""
    with _style():
        figure, axes = _figure()
        bottom = 0.0
        for i, part in enumerate(parts):
            look: dict[str, Any] = {
                "label": f"{part.label}, {part.size:.1f}",
                "color": _EMPTY if part.empty else _COLOURS[i % len(_COLOURS)],
                "hatch": "" if part.empty else _HATCHES[i // len(_COLOURS)],
                "edgecolor": "white",
            }
            axes.bar(names, part.size, 0.6, bottom, **look)
            bottom += part.size
        for limit, dashes in zip(limits, ("-", "--", ":"), strict=False):
            label = f"{limit.label}, {limit.height:.1f}"
            axes.axhline(limit.height, color="black", linestyle=dashes, linewidth=1.1, label=label)
        axes.set_xlim(-0.6, len(names) - 0.4)
        axes.set_ylabel(unit)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside right center", frameon=False)
        return _svg(figure)


def error_by_layer(curves: Sequence[Curve], rule: str, reference: str) -> bytes:
    """SVG of relative squared errors: solid under ``rule``, dashed under ``reference``."""
    with _style():
        figure, axes = _figure(legend_rows=len(curves))
        for i, curve in enumerate(curves):
            colour = _COLOURS[i % len(_COLOURS)]
            marker = _MARKERS[(i + i // len(_COLOURS)) % len(_MARKERS)]
            solid: dict[str, Any] = {"color": colour, "marker": marker, "linewidth": 1.1}
            hollow = solid | {"linestyle": "--", "markerfacecolor": "white"}
            if curve.reference == curve.values:
                _draw(axes, curve.layers, curve.values, curve.label, solid)
            else:
                _draw(axes, curve.layers, curve.values, f"{curve.label}, {rule}", solid)
                _draw(axes, curve.layers, curve.reference, f"{curve.label}, {reference}", hollow)
        drawn = [y for curve in curves for y in (*curve.values, *curve.reference) if y > 0]
        if drawn and max(drawn) > _LOGARITHMIC_RATIO * min(drawn):
            axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("layer")
        axes.set_ylabel("squared error / squared weights")
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        return _svg(figure)


def _draw(
    axes: Axes, layers: tuple[int, ...], values: tuple[float, ...], label: str, line: dict[str, Any]
) -> None:
    if layers:
        axes.plot(layers, values, label=label, markersize=3.5, **line)
    else:
        axes.axhline(values[0], label=f"{label} (in no layer)", **line | {"marker": ""})


def scale_choice(shifts: Sequence[int], counts: Sequence[int]) -> bytes:
    """SVG of how far the chosen E4M3 codes lie from those of amax / 6, in shares of all groups."""
    shares = [100 * count / sum(counts) for count in counts]
    with _style():
        figure, axes = _figure()
        bars = axes.bar(shifts, shares, color=_COLOURS[0], width=0.8)
        texts = [f"{share:.1f}" if share >= 0.05 else "" for share in shares]
        axes.bar_label(bars, texts, fontsize=7.5, padding=1)
        axes.set_xticks(list(shifts))
        axes.set_xlabel("steps of the E4M3 scale from amax / 6 (8 steps: a factor of 2)")
        axes.set_ylabel("groups of 16 weights, %")
        return _svg(figure)


@contextmanager
def _style() -> Iterator[None]:
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def _figure(legend_rows: int = 0) -> tuple[Figure, Axes]:
    height = _HEIGHT_INCHES + _LEGEND_ROW_INCHES * legend_rows
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    return figure, figure.add_subplot()


def _svg(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    nameless = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nameless)
    return buffer.getvalue()

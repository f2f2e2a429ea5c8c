"""The card's two pictures, drawn from the statistics of a run."""

from __future__ import annotations

from hy3.quantize.stats import StatsByKey, WeightStats, split_key
from hy3.report.plots import Curve, error_by_layer, scale_choice

ERROR_PICTURE = "hy3_error_by_layer.svg"
SCALE_PICTURE = "hy3_scale_choice.svg"


def draw_pictures(stats: StatsByKey, scales: str) -> dict[str, bytes]:
    """File name -> SVG; without NVFP4 weights there is no choice of scales to show.

    Args:
        scales: the scale rule that ``stats`` were made under
    """
    if not stats:
        return {}
    pictures = {ERROR_PICTURE: error_by_layer(_curves(stats), scales, "max")}
    shifts = sum(stats.values(), WeightStats()).shifts
    used = [i for i, count in enumerate(shifts) if count]
    if used:
        window = slice(used[0], used[-1] + 1)
        middle = len(shifts) // 2
        pictures[SCALE_PICTURE] = scale_choice(
            [i - middle for i in range(len(shifts))[window]], shifts[window]
        )
    return pictures


def _curves(stats: StatsByKey) -> list[Curve]:
    """A curve for each class, its layers in order; tensors outside the layers make one point."""
    points: dict[str, dict[int | None, WeightStats]] = {}
    for key, each in stats.items():
        label, layer = split_key(key)
        points.setdefault(label, {})[layer] = each
    curves = []
    for label in sorted(points):
        by_layer = points[label]
        layers = sorted(layer for layer in by_layer if layer is not None)
        drawn = [by_layer[layer] for layer in layers] or [by_layer[None]]
        curves.append(
            Curve(
                label,
                tuple(layers),
                tuple(each.relative_error for each in drawn),
                tuple(each.relative_max_error for each in drawn),
            )
        )
    return curves

"""``WeightStats``: what quantizing did to weights, in sums that add up over tensors.

Sums are made in data order within a shard and in shard order after that, so the number of threads
never shows in them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class WeightStats:
    """Sums over some quantized weights, in the weights' own units."""

    error: float = 0.0  # squared differences
    max_error: float = 0.0  # the same under the plain rule of the format, NVFP4's rule max
    energy: float = 0.0  # squared weights
    # Groups by chosen code less the code of rule max, -16 to 16; empty where nothing is chosen.
    shifts: tuple[int, ...] = ()

    def __add__(self, other: WeightStats) -> WeightStats:
        longer, shorter = sorted((self.shifts, other.shifts), key=len, reverse=True)
        shorter = shorter or (0,) * len(longer)
        return WeightStats(
            self.error + other.error,
            self.max_error + other.max_error,
            self.energy + other.energy,
            tuple(one + two for one, two in zip(longer, shorter, strict=True)),
        )

    @property
    def relative_error(self) -> float:
        """Squared error relative to the squared weights."""
        return self.error / self.energy if self.energy else 0.0

    @property
    def relative_max_error(self) -> float:
        """The same under the plain rule."""
        return self.max_error / self.energy if self.energy else 0.0

    @property
    def change_percent(self) -> float:
        """The error relative to that of the plain rule; negative is better."""
        return 100 * (self.error / self.max_error - 1) if self.max_error else 0.0


# "label@layer", as layer_key makes it, or a label alone -> its sums
StatsByKey = dict[str, WeightStats]


def layer_key(label: str, layer: int | None) -> str:
    """The key of one class in one layer; layer is None for tensors outside the layers."""
    return label if layer is None else f"{label}@{layer}"


def split_key(key: str) -> tuple[str, int | None]:
    """Label and layer of a key."""
    label, at, layer = key.partition("@")
    return label, int(layer) if at else None


def add_stats(many: Iterable[StatsByKey]) -> StatsByKey:
    """Key by key, in the given order."""
    sums: StatsByKey = {}
    for stats in many:
        for key, each in stats.items():
            sums[key] = sums.get(key, WeightStats()) + each
    return sums


def stats_by_class(stats: StatsByKey) -> StatsByKey:
    """The layers of each class added up: label -> sums."""
    return add_stats({split_key(key)[0]: each} for key, each in stats.items())

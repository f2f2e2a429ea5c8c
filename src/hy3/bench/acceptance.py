"""How many drafted tokens were accepted, per position, both ways of saying it.

``per_position[i]`` is the share of drafting steps that accepted position i (unconditional);
``conditional[i]`` is that share among the steps that accepted position i - 1. The second decides
whether a deeper draft pays. Sources: the per-request object when every request brought one, else
the difference of the server's Prometheus counters over the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PREFIXES = ("hy3:", "vllm:")
_DRAFTS = "spec_decode_num_drafts"
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"
_SAMPLE = re.compile(
    r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$"
)
_POSITION = re.compile(r'(?:^|,)\s*position="(\d+)"')


@dataclass(frozen=True)
class DraftCounts:
    """Drafting steps, and how many of them accepted each position."""

    drafts: int
    accepted: tuple[int, ...]
    source: str  # "per-request", "metrics" or "none"

    @property
    def per_position(self) -> list[float]:
        return [count / self.drafts for count in self.accepted] if self.drafts else []

    @property
    def conditional(self) -> list[float | None]:
        """None where the position before was never accepted."""
        before = (self.drafts, *self.accepted)
        return [
            count / reached if reached else None
            for count, reached in zip(self.accepted, before, strict=False)
        ]

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that a drafting step yields: what it accepted and the one it draws itself."""
        return 1 + sum(self.accepted) / self.drafts if self.drafts else None


NO_DRAFTS = DraftCounts(0, (), "none")


def from_histograms(histograms: Sequence[Sequence[int] | None]) -> DraftCounts | None:
    """Pool per-request histograms (entry j: steps that accepted exactly j drafts).

    None unless every request has one: a part would not stand for the run.
    """
    if not histograms or any(histogram is None for histogram in histograms):
        return None
    known = [histogram for histogram in histograms if histogram is not None]
    depth = max(len(histogram) for histogram in known)
    pooled = [sum(h[j] for h in known if j < len(h)) for j in range(depth)]
    accepted = tuple(sum(pooled[i + 1 :]) for i in range(depth - 1))
    return DraftCounts(sum(pooled), accepted, "per-request")


def parse_counters(text: str) -> DraftCounts | None:
    """The draft counters in a Prometheus page, summed over engines; None when it has none."""
    drafts: float | None = None
    accepted: dict[int, float] = {}
    for name, labels, value in _samples(text):
        if name == _DRAFTS:
            drafts = (drafts or 0.0) + value
        elif name == _PER_POSITION and (position := _POSITION.search(labels)):
            index = int(position.group(1))
            accepted[index] = accepted.get(index, 0.0) + value
    if drafts is None:
        return None
    depth = max(accepted, default=-1) + 1
    counts = tuple(int(accepted.get(i, 0)) for i in range(depth))
    return DraftCounts(int(drafts), counts, "metrics")


def counter_delta(before: DraftCounts | None, after: DraftCounts | None) -> DraftCounts | None:
    """What the counters gained between two pages."""
    if after is None:
        return None
    before = before or DraftCounts(0, (), "metrics")
    earlier = before.accepted + (0,) * (len(after.accepted) - len(before.accepted))
    gained = tuple(b - a for a, b in zip(earlier, after.accepted, strict=True))
    return DraftCounts(after.drafts - before.drafts, gained, "metrics")


def _samples(text: str) -> Iterable[tuple[str, str, float]]:
    """(name without prefix and ``_total``, labels, value) of this project's and vLLM's samples."""
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line.strip())
        if match is None:
            continue
        name = match["name"]
        prefix = next((p for p in PREFIXES if name.startswith(p)), None)
        if prefix is not None:
            short = name.removeprefix(prefix).removesuffix("_total")
            yield short, match["labels"] or "", float(match["value"])

"""The frozen result of a benchmark and its JSON form (schema ``hy3.bench/1``)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hy3.bench.acceptance import DraftCounts
from hy3.bench.metrics import RunMetrics

COUNT_TOLERANCE = 0.01
# The template's own opening may be cached for every prompt; more than this share is not that.
CACHED_TOLERANCE = 0.25


@dataclass(frozen=True)
class BenchRun:
    """One concurrency: its figures, its drafts, and one line for each kind of failure."""

    concurrency: int
    metrics: RunMetrics
    drafts: DraftCounts
    failure_details: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """The run's object in ``runs``."""
        drafts = self.drafts
        return {
            "concurrency": self.concurrency,
            **asdict(self.metrics),
            "failure_details": self.failure_details,
            "acceptance": {
                "drafts": drafts.drafts,
                "per_position": drafts.per_position,
                "conditional": drafts.conditional,
                "tokens_per_step": drafts.tokens_per_step,
                "source": drafts.source,
            },
        }

    def warnings(self) -> list[str]:
        """What makes the figures of this run doubtful."""
        found = []
        usage, counted = self.metrics.usage_tokens, self.metrics.output_tokens
        if usage is not None and abs(usage - counted) > COUNT_TOLERANCE * max(usage, 1):
            found.append(f"counted {counted} output tokens, the server's usage says {usage}")
        if self.metrics.cached_tokens > CACHED_TOLERANCE * max(self.metrics.input_tokens, 1):
            found.append(
                f"{self.metrics.cached_tokens} of {self.metrics.input_tokens} prompt tokens came "
                "from the prefix cache: TTFT is too good"
            )
        return [f"concurrency {self.concurrency}: {text}" for text in found]


@dataclass(frozen=True)
class BenchResult:
    """Everything a reader needs to judge or repeat the figures."""

    environment: dict[str, Any]
    server: dict[str, Any]
    method: dict[str, Any]
    runs: tuple[BenchRun, ...]

    @property
    def ok(self) -> bool:
        """Whether every request ended as promised and brought tokens."""
        return all(
            r.metrics.ok == r.metrics.requests and r.metrics.output_tokens for r in self.runs
        )

    def as_json(self) -> dict[str, Any]:
        """The object that ``hy3 bench --json`` prints."""
        return {
            "ok": self.ok,
            "environment": self.environment,
            "server": self.server,
            "method": self.method,
            "runs": [run.as_json() for run in self.runs],
            "warnings": [text for run in self.runs for text in run.warnings()],
        }

"""Counters of an engine, as one frozen reading; no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineStats:
    """State now and totals since the start; draft counts are per draft position, nearest first."""

    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    steps: int
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks that requests hold, 0 to 1."""
        return self.kv_blocks_used / self.kv_blocks_total

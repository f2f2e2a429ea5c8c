"""Prometheus metrics under vLLM's names with the prefix ``hy3:``, so that its dashboards fit.

What the server sends is counted here, token by token; what only the engine knows is read from its
counters at the moment of a scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hy3.engine.stats import EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
_REQUEST_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800, 3600)
_TOKENS = tuple(2**i for i in range(0, 19, 2))


class Metrics:
    """The metrics of one server, in a registry of its own.

    The attributes are prometheus metrics that already carry the model's name.
    """

    def __init__(self, model_name: str, stats: Callable[[], EngineStats | None]) -> None:
        self.registry = CollectorRegistry()
        self._model_name = model_name
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of accepted requests.")
        self.generation_tokens = self._counter(
            "generation_tokens", "Generated tokens, up to a stop string."
        )
        self.malformed_tool_calls = self._counter(
            "malformed_tool_calls", "Tool calls that were salvaged or dropped."
        )
        self._finished = Counter(
            "hy3:request_success",
            "Sequences by what ended them.",
            ("model_name", "finished_reason"),
            registry=self.registry,
        )
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token.", _FIRST_TOKEN_SECONDS
        )
        self.inter_token_latency = self._histogram(
            "inter_token_latency_seconds",
            "Time between tokens; those of one step share it evenly.",
            _TOKEN_SECONDS,
        )
        self.time_per_output_token = self._histogram(
            "request_time_per_output_token_seconds",
            "Per sequence: first to last token, divided by the tokens after the first.",
            _TOKEN_SECONDS,
        )
        self.e2e_latency = self._histogram(
            "e2e_request_latency_seconds", "Arrival to end.", _REQUEST_SECONDS
        )
        self.request_prompt_tokens = self._histogram(
            "request_prompt_tokens", "Prompt tokens per sequence.", _TOKENS
        )
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "Generated tokens per sequence.", _TOKENS
        )
        self.registry.register(_EngineCollector(model_name, stats))

    def finished(self, reason: str) -> None:
        """Count one sequence that ended."""
        self._finished.labels(model_name=self._model_name, finished_reason=reason).inc()

    def render(self) -> bytes:
        """The text that a scrape gets."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        metric = Counter(f"hy3:{name}", text, ("model_name",), registry=self.registry)
        return metric.labels(model_name=self._model_name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        metric = Histogram(
            f"hy3:{name}", text, ("model_name",), registry=self.registry, buckets=buckets
        )
        return metric.labels(model_name=self._model_name)


class _EngineCollector(Collector):
    """Reads the engine's counters when scraped; silent while the engine loads."""

    def __init__(self, model_name: str, stats: Callable[[], EngineStats | None]) -> None:
        self._model_name = model_name
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        if stats is None:
            return
        yield self._gauge("num_requests_running", "Sequences being computed.", stats.running)
        yield self._gauge("num_requests_waiting", "Sequences in the queue.", stats.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0-1.", stats.kv_usage)
        yield self._total("num_preemptions", "Sequences put back.", stats.preemptions)
        yield self._total(
            "prefix_cache_queries", "Prompt tokens looked up.", stats.prefix_query_tokens
        )
        yield self._total("prefix_cache_hits", "Prompt tokens found.", stats.prefix_hit_tokens)
        drafts = stats.drafted[0] if stats.drafted else 0
        yield self._total("spec_decode_num_drafts", "Steps that verified drafts.", drafts)
        yield self._total("spec_decode_num_draft_tokens", "Tokens proposed.", sum(stats.drafted))
        yield self._total(
            "spec_decode_num_accepted_tokens", "Proposed tokens accepted.", sum(stats.accepted)
        )
        per_position = CounterMetricFamily(
            "hy3:spec_decode_num_accepted_tokens_per_pos",
            "Proposed tokens accepted, by position from 0.",
            labels=("model_name", "position"),
        )
        for position, accepted in enumerate(stats.accepted):
            per_position.add_metric((self._model_name, str(position)), accepted)
        yield per_position

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"hy3:{name}", text, labels=("model_name",))
        family.add_metric((self._model_name,), value)
        return family

    def _total(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"hy3:{name}", text, labels=("model_name",))
        family.add_metric((self._model_name,), value)
        return family

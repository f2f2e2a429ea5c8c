"""A whole benchmark of one endpoint: look, fit the prompts, warm up, measure, sum up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from hy3.bench.acceptance import (
    NO_DRAFTS,
    DraftCounts,
    counter_delta,
    from_histograms,
    parse_counters,
)
from hy3.bench.client import Endpoint, RequestFailure
from hy3.bench.load import closed_loop
from hy3.bench.metrics import summarize
from hy3.bench.result import BenchResult, BenchRun
from hy3.bench.trace import RequestTrace, measure
from hy3.bench.workloads import PATHS, Workload, fit_characters, request_body
from hy3.errors import EnvironmentFault

FORMULAS = {
    "ttft": "first read with a token - send",
    "ttfo": "first read with visible text - send",
    "tpot": "(last read - first read) / (tokens - tokens of the first read)",
    "itl": "gap between reads / tokens of the read, once per token",
    "icl": "gap between reads",
    "tok_s_stream": "sum of (tokens - tokens of the first read) / sum of (last - first read)",
    "tok_s_total": "output tokens / (last end - first send)",
    "tok_s_steady": "tokens between the last stream's first token and the first stream's last end,"
    " per second",
}


@dataclass(frozen=True)
class BenchPlan:
    """What to measure. ``requests`` None means twice the concurrency, and at least four.

    A server keeps prompts: to measure it twice takes two seeds.
    """

    concurrency: tuple[int, ...] = (1, 6)
    prompt_tokens: int = 256
    output_tokens: int = 128
    requests: int | None = None
    api: str = "chat"
    temperature: float = 0.9
    model: str | None = None
    seed: int = 0  # of the prompts

    def requests_at(self, streams: int) -> int:
        """Requests of one run; never fewer than streams, so that each has work."""
        return max(self.requests or max(4, 2 * streams), streams)


async def run_bench(
    endpoint: Endpoint,
    plan: BenchPlan,
    environment: dict[str, Any],
    say: Callable[[str], None] = lambda text: None,
) -> BenchResult:
    """Measure the endpoint; raises EnvironmentFault when it cannot be reached or refuses probes."""
    entry = await _model_entry(endpoint, plan.model)
    characters = await _fit(endpoint, plan, entry["id"])
    workload = Workload(
        plan.api, entry["id"], characters, plan.output_tokens, plan.temperature, plan.seed
    )
    indices = count(1)  # the fitting probes used passage 0
    runs = []
    for streams in plan.concurrency:
        warm_up = [workload.body(next(indices)) for _ in range(streams)]
        await closed_loop(endpoint, workload.path, warm_up, streams)
        bodies = [workload.body(next(indices)) for _ in range(plan.requests_at(streams))]
        say(f"concurrency {streams}: {len(bodies)} requests")
        before = await _draft_counters(endpoint)
        traces = await closed_loop(endpoint, workload.path, bodies, streams)
        gained = counter_delta(before, await _draft_counters(endpoint))
        runs.append(_bench_run(streams, traces, gained))
    server = {"url": endpoint.base_url, "model": entry["id"], "max_model_len": None, **entry}
    return BenchResult(environment, server, _method(plan, workload, runs), tuple(runs))


def _bench_run(streams: int, traces: list[RequestTrace], gained: DraftCounts | None) -> BenchRun:
    per_request = from_histograms([trace.draft_histogram for trace in traces if trace.ok])
    details = {trace.failure: trace.detail for trace in traces if trace.failure}
    drafts = per_request or gained or NO_DRAFTS
    return BenchRun(streams, summarize(traces), drafts, details)


async def _model_entry(endpoint: Endpoint, wanted: str | None) -> dict[str, Any]:
    try:
        entries = await endpoint.models()
    except RequestFailure as error:
        raise EnvironmentFault(
            f"no endpoint answers ({error})",
            hint="start one with `hy3 serve MODEL`, or give its URL and key",
            where=endpoint.base_url,
        ) from error
    names = [entry.get("id") for entry in entries]
    if not entries or (wanted is not None and wanted not in names):
        raise EnvironmentFault(
            f"serves no model {wanted or ''}".rstrip(),
            hint=f"it offers: {', '.join(map(str, names)) or 'nothing'}",
            where=endpoint.base_url,
        )
    return entries[names.index(wanted)] if wanted is not None else entries[0]


async def _fit(endpoint: Endpoint, plan: BenchPlan, model: str) -> int:
    async def count_prompt(text: str) -> int:
        body = request_body(plan.api, model, text, max_tokens=1, temperature=plan.temperature)
        trace = await measure(endpoint, PATHS[plan.api], body)
        if not trace.ok or not trace.prompt_tokens:
            raise EnvironmentFault(
                f"a first short request failed ({trace.failure or 'no usage'}: {trace.detail})",
                hint="see the server's log; try smaller --prompt-tokens or another --api",
                where=endpoint.base_url,
            )
        return trace.prompt_tokens

    return await fit_characters(plan.prompt_tokens, count_prompt, plan.seed)


async def _draft_counters(endpoint: Endpoint) -> DraftCounts | None:
    """None when the server has no readable metrics page: not every endpoint has one."""
    try:
        return parse_counters(await endpoint.get_text(f"{endpoint.root_url}/metrics"))
    except RequestFailure:
        return None


def _method(plan: BenchPlan, workload: Workload, runs: list[BenchRun]) -> dict[str, Any]:
    return {
        "api": plan.api,
        "seed": plan.seed,
        "prompt_tokens_wanted": plan.prompt_tokens,
        "prompt_characters": workload.characters,
        "output_tokens_wanted": plan.output_tokens,
        "temperature": plan.temperature,
        "load": "closed loop, one warm-up request per stream",
        "counted_by": sorted({run.metrics.counted_by for run in runs if run.metrics.counted_by}),
        "formulas": FORMULAS,
    }

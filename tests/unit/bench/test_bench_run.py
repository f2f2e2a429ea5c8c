"""A whole benchmark and the command, against the server of known timing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hy3.bench.client import Endpoint
from hy3.bench.result import BenchResult
from hy3.bench.run import BenchPlan, run_bench
from hy3.bench.workloads import Workload, fit_characters, passage
from hy3.errors import EnvironmentFault
from hy3.report.table import bench_table
from support.timed_server import Script, TimedServer, timed_server

FAST = Script(first_delay_s=0.02, delay_s=0.01)


def bench(server: TimedServer, **plan: object) -> BenchResult:
    async def run() -> BenchResult:
        async with Endpoint(server.url, timeout_s=20) as endpoint:
            return await run_bench(endpoint, BenchPlan(**plan), {"machine": "test"})

    return asyncio.run(run())


def test_two_concurrencies() -> None:
    with timed_server(FAST) as server:
        result = bench(server, concurrency=(1, 3), prompt_tokens=101, output_tokens=30, requests=6)
    assert result.ok
    one, three = result.runs
    assert (one.concurrency, three.concurrency) == (1, 3)
    assert one.metrics.output_tokens == three.metrics.output_tokens == 6 * 30
    # The timed server's prompt has 7 tokens and one per two characters, so the fit is near exact.
    assert abs(one.metrics.input_tokens - 6 * 101) <= 6
    # Three streams share nothing: the total must be near three times one stream's.
    assert three.metrics.tok_s_total > 1.8 * one.metrics.tok_s_total
    # Six requests of 12 steps each; 9 of 12 chunks hold two tokens or more, 6 three or more.
    assert (one.drafts.drafts, one.drafts.accepted) == (72, (54, 36))
    assert one.drafts.source == "metrics"


def test_every_prompt_differs_and_load_is_bounded() -> None:
    with timed_server(FAST) as server:
        bench(server, concurrency=(2,), prompt_tokens=60, output_tokens=30, requests=5)
    prompts = [body["messages"][-1]["content"] for body in server.bodies]
    # two probes, a warm-up for each of two streams, five requests
    assert len(prompts) == 2 + 2 + 5
    assert len(set(prompts)) == len(prompts)
    assert all(body["ignore_eos"] and body["return_token_ids"] for body in server.bodies)


def test_a_seed_repeats_the_prompts_and_another_has_none_of_them() -> None:
    def sent(seed: int) -> list[dict[str, Any]]:
        with timed_server(FAST) as server:
            result = bench(server, concurrency=(2,), prompt_tokens=60, requests=5, seed=seed)
            assert result.method["seed"] == seed
            return server.bodies

    one, again, other = sent(1), sent(1), sent(2)
    assert one == again
    # A cache keeps blocks of 16 tokens from the beginning: here 32 characters.
    begins = [{body["messages"][-1]["content"][:32] for body in run} for run in (one, other)]
    assert not begins[0] & begins[1]


def test_per_request_acceptance_wins_over_counters() -> None:
    with timed_server(Script(first_delay_s=0, delay_s=0.001, histogram=[6, 4, 2])) as server:
        result = bench(server, concurrency=(1,), requests=4)
    drafts = result.runs[0].drafts
    assert (drafts.source, drafts.drafts, drafts.accepted) == ("per-request", 48, (24, 8))


def test_failed_requests_make_the_result_not_ok() -> None:
    broken = [FAST, FAST, Script(fault="error"), Script(fault="429")]
    with timed_server(FAST, scripts=broken) as server:
        result = bench(server, concurrency=(1,), requests=4)
    run = result.runs[0]
    assert not result.ok
    assert run.metrics.failed == {"error_event": 1, "http_429": 1}
    assert run.failure_details["http_429"] == "queue full"
    assert "2/4 (1 error_event, 1 http_429)" in bench_table(result.as_json()).rows[0]


def test_a_model_that_is_not_served() -> None:
    with timed_server(FAST) as server, pytest.raises(EnvironmentFault, match="serves no model x"):
        bench(server, model="x")


def test_passages_are_real_text_of_the_length_asked() -> None:
    first, second = passage(1, 500), passage(2, 500)
    assert len(first) == len(second) == 500
    assert first[:50] != second[:50] and passage(1, 500) == first
    assert passage(1, 100) == first[:100]
    assert len({passage(1, 60, seed) for seed in range(200)}) > 190
    assert 3 < 500 / len(first.split()) < 9  # words of a language, not noise
    assert len(passage(3, 1_000_000)) == 1_000_000


@pytest.mark.parametrize(("per_character", "fixed"), [(0.22, 12), (0.5, 0), (1.0, 40)])
def test_fit_characters(per_character: float, fixed: int) -> None:
    async def count(text: str) -> int:
        return round(per_character * len(text)) + fixed

    characters = asyncio.run(fit_characters(400, count))
    assert abs(per_character * characters + fixed - 400) <= 4


def test_bodies_repeat() -> None:
    workload = Workload("completions", "m", 120, 8, 0.9)
    assert workload.body(3) == workload.body(3)
    assert workload.body(3)["prompt"] != workload.body(4)["prompt"]
    assert workload.body(3)["seed"] == 3


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hy3", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_command_json_table_and_file(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    options = ["--concurrency", "2", "--requests", "4", "--prompt-tokens", "40"]
    with timed_server(FAST) as server:
        done = run_cli(server.url, *options, "--json", "--out", str(out))
        text = run_cli(server.url, *options, "--quiet", "--seed", "7")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == json.loads(out.read_text())
    assert result["schema"] == "hy3.bench/1"
    run = result["runs"][0]
    assert run["tpot_ms"].keys() == {"p50", "p90", "p99", "max"}
    assert run["acceptance"]["conditional"] == pytest.approx([0.75, 2 / 3])
    assert result["method"]["counted_by"] == ["token_ids"]
    assert "4/4" in text.stdout and "75 / 50 %" in text.stdout
    assert "--seed 7 repeats these prompts" in text.stdout


def test_command_fails_when_requests_fail_or_nothing_answers() -> None:
    with timed_server(FAST, scripts=[FAST, Script(fault="cut")]) as server:
        done = run_cli(server.url, "--concurrency", "1", "--requests", "2", "--json")
        url = server.url
    assert done.returncode == 1
    assert json.loads(done.stdout)["runs"][0]["failed"] == {"cut": 1}
    assert "cut: the stream ended before [DONE]" in done.stderr
    gone = run_cli(url, "--json")
    assert gone.returncode == 3
    assert json.loads(gone.stdout)["error"]["kind"] == "environment"
    assert run_cli(url, "--concurrency", "1,x").returncode == 2

"""The counters of /metrics equal what was sent, and carry vLLM's names."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hy3.deploy.native_plan import NativeOptions
from support.live_server import wait_until
from support.scripted import CALL_TAIL, make_scripted
from support.served_models import Live, serve_native

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = make_scripted(tmp_path_factory.mktemp("metrics") / "model", mtp_noise=2.0)
    with serve_native(folder, NativeOptions(drafts=2)) as live:
        yield live


def scrape(live: Live) -> dict[str, float]:
    """Every sample by its name and the labels other than the model's."""
    response = httpx.get(f"{live.url}/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "m"
            key = sample.name + "".join(f"{{{k}={v}}}" for k, v in sorted(labels.items()))
            samples[key] = sample.value
    return samples


def chat(live: Live, **body) -> dict:
    body = {"model": "m", "messages": HELLO, "temperature": 0} | body
    return httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=60).json()


def deltas(live: Live, before: dict[str, float]) -> dict[str, float]:
    after = scrape(live)
    return {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key)}


def test_tokens_and_requests_are_counted_as_sent(live: Live) -> None:
    before = scrape(live)
    usages = [
        chat(live)["usage"],
        chat(live, max_tokens=3)["usage"],
        chat(live, stop=" make")["usage"],
        chat(live, n=2)["usage"],
    ]
    found = deltas(live, before)
    sent = sum(usage["completion_tokens"] for usage in usages)
    assert found["hy3:generation_tokens_total"] == sent
    assert found["hy3:prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in usages)
    assert found["hy3:request_success_total{finished_reason=stop}"] == 4
    assert found["hy3:request_success_total{finished_reason=length}"] == 1
    assert found["hy3:time_to_first_token_seconds_count"] == 5
    assert found["hy3:e2e_request_latency_seconds_count"] == 5
    assert found["hy3:request_generation_tokens_sum"] == sent
    # Tokens of a sequence's first step have no predecessor on the wire.
    assert 0 < found["hy3:inter_token_latency_seconds_count"] <= sent - 5


def test_a_stream_counts_the_tokens_on_the_wire(live: Live) -> None:
    before = scrape(live)
    body = {"model": "m", "prompt": "Count:", "max_tokens": 50, "temperature": 0, "stream": True}
    response = httpx.post(
        f"{live.url}/v1/completions", json=body | {"return_token_ids": True}, timeout=60
    )
    lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: {")]
    on_the_wire = sum(len(json.loads(line)["choices"][0]["token_ids"]) for line in lines)
    assert on_the_wire == 50
    assert deltas(live, before)["hy3:generation_tokens_total"] == 50


def test_acceptance_is_told_per_position(live: Live) -> None:
    before, stats = scrape(live), live.backend.stats()
    answer = chat(live)
    wait_until(lambda: live.backend.stats().running == 0)
    found, after = deltas(live, before), live.backend.stats()
    drafted = [b - a for a, b in zip(stats.drafted, after.drafted, strict=True)]
    accepted = [b - a for a, b in zip(stats.accepted, after.accepted, strict=True)]
    assert found["hy3:spec_decode_num_drafts_total"] == drafted[0] > 0
    assert found["hy3:spec_decode_num_draft_tokens_total"] == sum(drafted)
    assert found["hy3:spec_decode_num_accepted_tokens_total"] == sum(accepted)
    per_position = "hy3:spec_decode_num_accepted_tokens_per_pos_total"
    assert [found.get(f"{per_position}{{position={i}}}", 0) for i in range(2)] == accepted
    assert accepted[0] > 0
    per_request = answer["metrics"]["speculative_decoding"]
    assert sum(per_request["acceptance_histogram"]) == per_request["num_drafts"] == drafted[0]
    assert per_request["num_accepted_tokens"] == sum(accepted)


def test_gauges_and_cache_counters(live: Live) -> None:
    before = scrape(live)
    long = [{"role": "user", "content": "the same words again " * 10}]
    first = chat(live, messages=long, max_tokens=2)["usage"]
    second = chat(live, messages=long, max_tokens=2)["usage"]
    found = deltas(live, before)
    assert found["hy3:prefix_cache_queries_total"] >= 2 * first["prompt_tokens"]
    cached = second["prompt_tokens_details"]["cached_tokens"]
    assert found["hy3:prefix_cache_hits_total"] >= cached > 0
    idle = scrape(live)
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert idle[f"hy3:{name}"] == 0
    assert idle["hy3:num_preemptions_total"] == 0


def test_a_client_that_leaves_is_counted_as_aborted_and_frees_its_blocks(live: Live) -> None:
    before = scrape(live)
    body = {"model": "m", "prompt": "Count:", "max_tokens": 1500, "ignore_eos": True}
    with httpx.Client(base_url=live.url, timeout=60) as client:
        stream = client.stream("POST", "/v1/completions", json=body | {"stream": True})
        with stream as response:
            lines = response.iter_lines()
            next(lines)
            assert scrape(live)["hy3:num_requests_running"] == 1
            assert scrape(live)["hy3:kv_cache_usage_perc"] > 0
    wait_until(lambda: scrape(live)["hy3:num_requests_running"] == 0)
    assert scrape(live)["hy3:kv_cache_usage_perc"] == 0
    found = deltas(live, before)
    assert found["hy3:request_success_total{finished_reason=abort}"] == 1
    assert found["hy3:generation_tokens_total"] < 1500


def test_salvaged_tool_calls_are_counted(tmp_path) -> None:
    broken = "<tool_calls>\n<tool_call>get_weather</arg_value>\n</tool_calls>"
    folder = make_scripted(tmp_path / "model", replies={CALL_TAIL: broken})
    tools = [{"type": "function", "function": {"name": "get_weather"}}]
    with serve_native(folder) as live:
        message = chat(live, tools=tools)["choices"][0]
        assert message["finish_reason"] == "tool_calls"
        assert message["message"]["tool_calls"][0]["function"]["arguments"] == "{}"
        assert scrape(live)["hy3:malformed_tool_calls_total"] == 1

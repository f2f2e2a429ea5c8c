"""The demo's steps, each a command or a request that anyone can repeat by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, TypeVar

from hy3.bench.client import Endpoint, RequestFailure
from hy3.bench.run import BenchPlan, run_bench
from hy3.demo.path import Course, Step
from hy3.demo.process import ServeProcess, run_command
from hy3.demo.schema import complaint_about
from hy3.errors import CheckFailed
from hy3.units import format_bytes

T = TypeVar("T")

QUESTION, ANSWER = "What is 347 + 285?", "632"
TOOL_QUESTION = "Give me the forecast for Paris for 3 days in celsius."
TOOL = {
    "type": "function",
    "function": {
        "name": "get_forecast",
        "description": "Weather of the coming days",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "days"],
        },
    },
}
REQUEST_TIMEOUT_S = 60.0
BENCH_PLAN = BenchPlan(
    concurrency=(1, 6), prompt_tokens=128, output_tokens=64, requests=6, temperature=0.0
)
KL_LIMIT, TOP1_LIMIT = 0.05, 0.9  # nats per token; share of positions


def quantize(course: Course) -> str:
    """BF16 to NVFP4, as ``hy3 quantize``."""
    command = ["quantize", str(course.model), str(course.quantized)]
    course.found["quantize"] = run_command(command)
    before, after = (
        sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        for folder in (course.model, course.quantized)
    )
    if not 0 < after < before:
        raise CheckFailed(
            f"{format_bytes(before)} became {format_bytes(after)}",
            hint="the quantized experts should take about a third of their BF16 bytes",
            where=str(course.quantized),
        )
    return f"{format_bytes(before)} of BF16 became {format_bytes(after)}"


def verify(course: Course) -> str:
    """Every check of ``hy3 verify``; what it could not prove counts as failed here."""
    command = ["verify", str(course.quantized), "--source", str(course.model)]
    course.found["verify"] = run_command(command, statuses=(0, 1))
    return check_verdict(course.found["verify"])


def check_verdict(verdict: dict[str, Any]) -> str:
    """Raises CheckFailed unless there are checks and every one has passed, warnings apart."""
    checks = verdict["checks"]
    bad = [check for check in checks if check["status"] in ("fail", "not_proved")]
    if bad or not checks or not verdict["ok"]:
        listed = "; ".join(f"{check['id']}: {check['detail']}" for check in bad)
        raise CheckFailed(listed or "no checks were made", hint="hy3 verify lists the tensors")
    return f"{len(checks)} checks passed"


def start_server(course: Course) -> str:
    """The quantized checkpoint behind HTTP, one draft per step."""
    return _serve(course, drafts=1)


def chat(course: Course) -> str:
    """One streamed turn at effort high: reasoning, then the right answer."""
    body = {
        "model": course.quantized.name,
        "messages": [{"role": "user", "content": QUESTION}],
        "reasoning_effort": "high",
        "temperature": 0,
        "max_tokens": 512,
        "stream": True,
    }

    async def ask(endpoint: Endpoint) -> dict[str, str]:
        turn = {"reasoning": "", "content": "", "finish_reason": ""}
        async for event in endpoint.stream("/chat/completions", body):
            for choice in event.data["choices"]:
                for key in ("reasoning", "content"):
                    turn[key] += choice["delta"].get(key) or ""
                turn["finish_reason"] = choice["finish_reason"] or turn["finish_reason"]
        return turn

    turn = _with_endpoint(course, ask)
    course.found["chat"] = {"question": QUESTION, **turn}
    course.say(f"      user      {QUESTION}")
    course.say(f"      reasoning {' / '.join(turn['reasoning'].split(chr(10)))}")
    course.say(f"      answer    {turn['content']}")
    if turn["finish_reason"] != "stop" or not turn["reasoning"].strip():
        raise CheckFailed(
            f"finish_reason {turn['finish_reason']!r}, reasoning {turn['reasoning'][:40]!r}",
            hint="a turn at effort high reasons and then stops by itself",
        )
    if ANSWER not in turn["content"]:
        raise CheckFailed(f"{QUESTION} {turn['content']!r}", hint=f"the answer is {ANSWER}")
    return f"{QUESTION} {turn['content'].strip()}"


def call_tool(course: Course) -> str:
    """One turn that calls the offered function of its own accord."""
    body = {
        "model": course.quantized.name,
        "messages": [{"role": "user", "content": TOOL_QUESTION}],
        "tools": [TOOL],
        "temperature": 0,
        "max_tokens": 256,
    }
    reply = _with_endpoint(course, lambda endpoint: endpoint.post("/chat/completions", body))
    choice = reply["choices"][0]
    course.found["tool_call"] = {"question": TOOL_QUESTION, **choice}
    return check_tool_call(choice)


def check_tool_call(choice: dict[str, Any]) -> str:
    """Raises CheckFailed unless the choice is one valid call of TOOL."""
    calls = choice["message"].get("tool_calls") or []
    if choice["finish_reason"] != "tool_calls" or len(calls) != 1:
        raise CheckFailed(
            f"finish_reason {choice['finish_reason']!r} with {len(calls)} calls",
            hint=f"one call was expected; content: {choice['message'].get('content')!r}",
        )
    function = calls[0]["function"]
    expected: Any = TOOL["function"]
    try:
        complaint = complaint_about(json.loads(function["arguments"]), expected["parameters"])
    except ValueError:
        complaint = "not JSON"
    if function["name"] != expected["name"] or complaint:
        raise CheckFailed(
            f"{function['name']}({function['arguments']}): {complaint or 'unknown function'}",
            hint="the arguments must be valid for the function's schema",
        )
    return f"{function['name']}({function['arguments']})"


def bench_with_drafts(course: Course) -> str:
    """1 and 6 streams with one draft per step."""
    return _bench(course, "bench_drafts_on", drafts_expected=True)


def bench_without_drafts(course: Course) -> str:
    """The same against a server that never drafts; the first one must stop by itself."""
    _stop(course)
    _serve(course, drafts=0)
    text = _bench(course, "bench_drafts_off", drafts_expected=False)
    _stop(course)
    return text


def diverge(course: Course) -> str:
    """The NVFP4 checkpoint against the BF16 one, token by token, on text neither was fitted to."""
    from hy3.demo.held_out import held_out_documents
    from hy3.evaluate.divergence import compare_models, draft_acceptance, measure_noise
    from hy3.model.decoder import load_model

    documents = held_out_documents(course.model)
    reference, candidate = load_model(course.model), load_model(course.quantized)
    found = course.found["divergence"] = {
        **asdict(compare_models(reference, candidate, documents)),
        "noise_kl_mean": measure_noise(reference, documents).kl_mean,
        "draft_acceptance_reference": draft_acceptance(reference, documents),
        "draft_acceptance_candidate": draft_acceptance(candidate, documents),
    }
    return check_divergence(found)


def check_divergence(found: dict[str, Any]) -> str:
    """Raises CheckFailed unless the candidate is close to the reference, and is not it."""
    kl, top1 = found["kl_mean"], found["top1_agreement"]
    if kl <= found["noise_kl_mean"]:
        raise CheckFailed(
            f"KL {kl:.5f} nats is within the noise of {found['noise_kl_mean']:.5f}",
            hint="equal models: the quantized one was not the one compared",
        )
    text = f"KL {kl:.4f} nats (noise {found['noise_kl_mean']:.4f}), top-1 {top1:.1%}"
    if kl > KL_LIMIT or top1 < TOP1_LIMIT:
        raise CheckFailed(text, hint=f"expected KL <= {KL_LIMIT} and top-1 >= {TOP1_LIMIT:.0%}")
    return f"{text}, {found['positions']} positions"


STEPS = (
    Step("quantize", "exit 0 and smaller than the source", quantize),
    Step("verify", "every check passes, none unproved", verify),
    Step("serve", "answers within 90 s", start_server),
    Step("chat", "reasons, answers rightly, stops by itself", chat),
    Step("tool call", "one call, arguments valid for the schema", call_tool),
    Step("bench, one draft", "every request ends well, drafts are accepted", bench_with_drafts),
    Step("bench, no drafts", "every request ends well, nothing drafted", bench_without_drafts),
    Step("compare with BF16", f"KL <= {KL_LIMIT} nats, top-1 >= {TOP1_LIMIT:.0%}", diverge),
)


def _serve(course: Course, drafts: int) -> str:
    arguments = [str(course.quantized), "--drafts", str(drafts)]
    course.server = course.cleanup.enter_context(ServeProcess(arguments))
    return f"{course.server.url}, drafts {drafts}"


def _stop(course: Course) -> None:
    assert course.server is not None
    course.server.stop()
    course.server = None


def _with_endpoint(course: Course, use: Callable[[Endpoint], Awaitable[T]]) -> T:
    assert course.server is not None
    url = course.server.url

    async def run() -> T:
        async with Endpoint(url, timeout_s=REQUEST_TIMEOUT_S) as endpoint:
            return await use(endpoint)

    try:
        return asyncio.run(run())
    except RequestFailure as error:
        raise CheckFailed(f"the request failed: {error}", hint="see `hy3 serve`'s log") from error


def _bench(course: Course, name: str, drafts_expected: bool) -> str:
    result = _with_endpoint(course, lambda endpoint: run_bench(endpoint, BENCH_PLAN, {}))
    course.found[name] = result.as_json()
    return check_bench(course.found[name], drafts_expected)


def check_bench(result: dict[str, Any], drafts_expected: bool) -> str:
    """Raises CheckFailed unless all requests ended well and drafting was as expected."""
    parts = []
    for run in result["runs"]:
        acceptance = run["acceptance"]
        accepted = sum(acceptance["per_position"])
        if run["failed"] or not run["output_tokens"]:
            raise CheckFailed(f"failed requests: {run['failed']}", hint="see `hy3 serve`'s log")
        if bool(acceptance["drafts"]) != drafts_expected or (drafts_expected and not accepted):
            raise CheckFailed(
                f"{acceptance['drafts']} drafting steps, {accepted:.0%} accepted",
                hint="the server drafts as `--drafts` says",
            )
        share = f" ({accepted:.0%} accepted)" if drafts_expected else ""
        streams = "1 stream" if run["concurrency"] == 1 else f"{run['concurrency']} streams"
        parts.append(f"{streams} {run['tok_s_total']:.0f} tok/s{share}")
    return ", ".join(parts)

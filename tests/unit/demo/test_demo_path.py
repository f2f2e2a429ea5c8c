"""The order of the steps and what each condition refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hy3.cli.demo import find_model
from hy3.demo.path import Course, Step, run_steps
from hy3.demo.process import ServeProcess, run_command
from hy3.demo.steps import (
    KL_LIMIT,
    TOP1_LIMIT,
    check_bench,
    check_divergence,
    check_tool_call,
    check_verdict,
)
from hy3.errors import CheckFailed, InputError


def test_a_failed_step_ends_the_run(tmp_path: Path) -> None:
    closed = []

    def first(course: Course) -> str:
        course.cleanup.callback(closed.append, "first")
        course.found["first"] = 1
        return "fine"

    def second(course: Course) -> str:
        raise InputError("is broken", hint="mend it", where="x")

    steps = [Step("a", "", first), Step("b", "", second), Step("c", "", first)]
    said: list[str] = []
    results, found = run_steps(steps, tmp_path, tmp_path, said.append)
    assert [(r.status, r.detail) for r in results] == [
        ("held", "fine"),
        ("failed", "x: is broken"),
        ("not run", ""),
    ]
    assert results[1].hint == "mend it"
    assert (found, closed) == ({"first": 1}, ["first"])
    assert "[2/3] b" in said


def test_verify_condition() -> None:
    passed = {"id": "hashes", "status": "pass", "detail": ""}
    assert check_verdict({"ok": True, "checks": [passed] * 3}) == "3 checks passed"
    unproved = {"id": "group_errors", "status": "not_proved", "detail": "no source"}
    failed = {"id": "dtypes", "status": "fail", "detail": "1 tensor"}
    for checks, complaint in (
        ([passed, unproved], "group_errors: no source"),
        ([passed, failed], "dtypes: 1 tensor"),
        ([], "no checks"),
    ):
        with pytest.raises(CheckFailed, match=complaint):
            check_verdict({"ok": True, "checks": checks})


def choice(
    arguments: str, name: str = "get_forecast", reason: str = "tool_calls"
) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"finish_reason": reason, "message": {"content": None, "tool_calls": [call]}}


def test_tool_call_condition() -> None:
    good = '{"city": "Paris", "days": 3}'
    assert check_tool_call(choice(good)) == f"get_forecast({good})"
    none = {"finish_reason": "tool_calls", "message": {"content": "It rains.", "tool_calls": None}}
    bad = [
        (choice(good, reason="stop"), "finish_reason 'stop'"),
        (choice('{"city": "Paris", "days": "3"}'), "days is not of type integer"),
        (choice('{"city": "Paris"}'), "lacks days"),
        (choice('{"city": '), "not JSON"),
        (choice(good, name="get_news"), "unknown function"),
        (none, "with 0 calls"),
    ]
    for broken, complaint in bad:
        with pytest.raises(CheckFailed, match=complaint):
            check_tool_call(broken)


def bench_result(**changes: Any) -> dict[str, Any]:
    acceptance = {"drafts": 10, "per_position": [0.7]}
    run = {"concurrency": 1, "failed": {}, "output_tokens": 50, "tok_s_total": 99.6}
    return {"runs": [run | {"acceptance": acceptance} | changes]}


def test_bench_condition() -> None:
    off = bench_result(acceptance={"drafts": 0, "per_position": []})
    assert check_bench(bench_result(), True) == "1 stream 100 tok/s (70% accepted)"
    assert check_bench(off, False) == "1 stream 100 tok/s"
    with pytest.raises(CheckFailed, match="0 drafting steps"):
        check_bench(off, True)
    with pytest.raises(CheckFailed, match="10 drafting steps"):
        check_bench(bench_result(), False)
    with pytest.raises(CheckFailed, match="0% accepted"):
        check_bench(bench_result(acceptance={"drafts": 9, "per_position": [0.0]}), True)
    with pytest.raises(CheckFailed, match="cut"):
        check_bench(bench_result(failed={"cut": 1}), True)


def test_divergence_condition() -> None:
    good = {"kl_mean": 0.01, "top1_agreement": 0.95, "noise_kl_mean": 0.0001, "positions": 100}
    text = "KL 0.0100 nats (noise 0.0001), top-1 95.0%, 100 positions"
    assert check_divergence(good) == text
    for change, complaint in (
        ({"kl_mean": 0.0, "noise_kl_mean": 0.0}, "within the noise"),
        ({"kl_mean": 0.0001}, "within the noise"),
        ({"kl_mean": 1.01 * KL_LIMIT}, "KL 0.0505"),
        ({"top1_agreement": TOP1_LIMIT - 0.001}, r"top-1 89\.9%"),
    ):
        with pytest.raises(CheckFailed, match=complaint):
            check_divergence(good | change)


def test_commands_are_judged_by_status_and_json(tmp_path: Path) -> None:
    assert run_command(["env"])["schema"] == "hy3.env/1"
    with pytest.raises(CheckFailed, match="exit 3") as caught:
        run_command(["bench", "http://127.0.0.1:9"])
    assert "no endpoint answers" in caught.value.message
    assert caught.value.hint == "run it by hand: hy3 bench http://127.0.0.1:9"


def test_model_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no checkpoint there"):
        find_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert find_model(tmp_path) == tmp_path


def test_a_server_that_cannot_start(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="did not start"), ServeProcess([str(tmp_path)]):
        pass

"""`hy3 bench` against the real server, on checkpoints whose drafts are right as often as asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hy3.demo.process import ServeProcess
from support.scripted import make_scripted

OPTIONS = ["--concurrency", "1,3", "--requests", "3", "--output-tokens", "40", "--json", "--quiet"]


def bench(folder: Path, drafts: int, *options: str) -> dict[str, Any]:
    with ServeProcess([str(folder), "--drafts", str(drafts)]) as server:
        result = bench_at(server.url, *options)
        server.stop()
    return result


def bench_at(url: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "hy3", "bench", url, *OPTIONS, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_drafts_that_are_always_right(tmp_path: Path) -> None:
    """Two drafts a step, all accepted: three tokens a step, counted as tokens."""
    folder = make_scripted(tmp_path / "model", mtp_noise=0.0)
    result = bench(folder, 2, "--prompt-tokens", "200", "--temperature", "0")
    assert result["method"]["counted_by"] == ["token_ids"]
    assert [run["concurrency"] for run in result["runs"]] == [1, 3]
    for run in result["runs"]:
        assert (run["ok"], run["failed"]) == (3, {})
        assert run["output_tokens"] == run["usage_tokens"] == 3 * 40
        assert abs(run["input_tokens"] / 3 - 200) <= 15
        # The block that the template's opening fills: template and instruction are some 60 tokens,
        # so that shorter prompts have no text of their own to differ in.
        assert run["cached_tokens"] <= 3 * 16
        assert run["acceptance"]["per_position"] == pytest.approx([1.0, 1.0])
        assert run["acceptance"]["tokens_per_step"] == pytest.approx(3.0)


def test_drafts_that_are_often_wrong(tmp_path: Path) -> None:
    folder = make_scripted(tmp_path / "model", mtp_noise=2.0)
    result = bench(folder, 1, "--prompt-tokens", "40", "--temperature", "0")
    assert [run["concurrency"] for run in result["runs"]] == [1, 3]
    for run in result["runs"]:
        assert run["output_tokens"] == 120
        assert 0.3 < run["acceptance"]["per_position"][0] < 0.95
        assert run["acceptance"]["conditional"] == run["acceptance"]["per_position"]


def test_no_drafts_and_only_the_same_seed_finds_its_prompts_in_the_cache(tmp_path: Path) -> None:
    few = ["--concurrency", "1", "--output-tokens", "2"]
    with ServeProcess([str(make_scripted(tmp_path / "model")), "--drafts", "0"]) as server:
        result = bench_at(server.url, "--prompt-tokens", "40", "--api", "completions")
        fresh = [bench_at(server.url, *few) for _ in range(2)]
        seeds = [each["method"]["seed"] for each in fresh]
        again = bench_at(server.url, *few, "--seed", str(seeds[1]))
        server.stop()
    assert [abs(run["input_tokens"] / 3 - 40) <= 8 for run in result["runs"]] == [True, True]
    assert [run["acceptance"]["drafts"] for run in result["runs"]] == [0, 0]
    assert result["ok"]
    runs = [each["runs"][0] for each in (*fresh, again)]
    shares = [run["cached_tokens"] / run["input_tokens"] for run in runs]
    assert max(shares[:2]) < 0.25 and shares[2] > 0.8
    assert seeds[0] != seeds[1] and "TTFT is too good" in again["warnings"][0]

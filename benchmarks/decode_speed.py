"""Decode speed of the engine beside ``transformers.generate`` on one machine, in one run.

Decode only: each side's clock starts when its first tokens are there. The same greedy prompts go
to our engine, with drafts off and on, and to transformers as one padded batch and one after
another, each with every thread count of ``--threads``, because small matrices can be faster on
one. Rounds are interleaved and medians taken; our ratio is against the fastest of theirs. With
``--vllm`` vLLM is measured before them, by the same clock.

    python benchmarks/decode_speed.py [--vllm PYTHON_OF_AN_ENVIRONMENT_WITH_VLLM]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.utils import logging

from chat_prompts import make_prompts
from hy3.engine.engine import Engine, EngineConfig
from hy3.engine.request import Request, SamplingParams
from hy3.model.decoder import Hy3Model, load_model
from record import record

ROOT = Path(__file__).resolve().parent.parent
STREAMS = (1, 6)
DRAFTS = (0, 1)
GOALS = {1: 3.0, 6: 2.0}

Decode = Callable[[list[list[int]], int], float]  # prompts and tokens each -> seconds of decode


def main() -> None:
    """Measure, print the ratios, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "hy3-tiny")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--vllm", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    batches = [make_prompts(arguments.model, streams) for streams in STREAMS]
    others = vllm_sides(arguments, batches) if arguments.vllm else [[] for _ in batches]
    logging.set_verbosity_error()
    model = load_model(arguments.model)
    reference = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.bfloat16).eval()
    # Its checkpoint's end tokens would end a stream early.
    reference.generation_config = GenerationConfig()
    sides: dict[tuple[str, int], Decode] = {}
    for threads in arguments.threads:
        for drafts in DRAFTS:
            sides[f"hy3, drafts {drafts}", threads] = engine_decode(model, drafts)
        sides["transformers, padded batch", threads] = batched(reference)
        sides["transformers, one by one", threads] = one_by_one(reference)
    runs = []
    for prompts, other in zip(batches, others, strict=True):
        run = measure(sides, prompts, arguments.tokens, arguments.rounds)
        runs.append({**run, "beside": other})
        print(runs[-1], file=sys.stderr)
    results = {
        "model": arguments.model.name,
        "dtype": "bfloat16",
        "output_tokens_per_stream": arguments.tokens,
        "rounds": arguments.rounds,
        "runs": runs,
    }
    print(record("decode_speed", results, arguments.out))


def measure(
    sides: dict[tuple[str, int], Decode], prompts: list[list[int]], tokens: int, rounds: int
) -> dict[str, Any]:
    """Tokens per second of every side, and ours against the fastest of theirs."""
    seconds: dict[tuple[str, int], list[float]] = {side: [] for side in sides}
    for index, (side, decode) in itertools.product(range(rounds + 1), sides.items()):
        torch.set_num_threads(side[1])
        taken = decode(prompts, tokens)
        if index:  # the first round warms up
            seconds[side].append(taken)
    produced = len(prompts) * (tokens - 1)
    speeds = {side: produced / statistics.median(taken) for side, taken in seconds.items()}
    theirs = max(speed for (name, _), speed in speeds.items() if name.startswith("transformers"))
    return {
        "streams": len(prompts),
        "goal": GOALS[len(prompts)],
        "sides": [
            {
                **speed(name, threads, produced, seconds[name, threads]),
                "ratio": round(speeds[name, threads] / theirs, 2),
            }
            for name, threads in sides
        ],
    }


def speed(name: str, threads: int, produced: int, seconds: list[float]) -> dict[str, Any]:
    """Median and extremes in tokens per second."""
    return {
        "side": name,
        "threads": threads,
        "tok_s": round(produced / statistics.median(seconds), 1),
        "tok_s_min": round(produced / max(seconds), 1),
        "tok_s_max": round(produced / min(seconds), 1),
    }


def vllm_sides(
    arguments: argparse.Namespace, batches: list[list[list[int]]]
) -> list[list[dict[str, Any]]]:
    """vLLM with drafts off and on, per batch; each a process of its own environment."""
    measured: list[list[dict[str, Any]]] = [[] for _ in batches]
    for threads, drafts in itertools.product(arguments.threads, DRAFTS):
        job = {
            "model": str(arguments.model.resolve()),
            "tokens": arguments.tokens,
            "rounds": arguments.rounds,
            "drafts": drafts,
            "threads": threads,
            "batches": batches,
        }
        script = Path(__file__).with_name("vllm_decode.py")
        done = subprocess.run(
            [arguments.vllm, script],
            input=json.dumps(job),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=600,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        )
        reply = json.loads(done.stdout.strip().splitlines()[-1])
        name = f"vLLM {reply['version']}, drafts {drafts}"
        for sides, prompts, seconds in zip(measured, batches, reply["seconds"], strict=True):
            produced = len(prompts) * (arguments.tokens - 1)
            sides.append(speed(name, threads, produced, seconds))
    return measured


def engine_decode(model: Hy3Model, drafts: int) -> Decode:
    """Our engine; the clock starts when every stream has its first token."""

    def decode(prompts: list[list[int]], tokens: int) -> float:
        context = max(map(len, prompts)) + tokens
        blocks = len(prompts) * -(-context // 16)
        config = EngineConfig(num_blocks=blocks, max_context=context, draft_depth=drafts)
        engine = Engine(model, config)
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        for index, prompt in enumerate(prompts):
            engine.add(Request(str(index), tuple(prompt), params))
        started: set[str] = set()
        while len(started) < len(prompts):
            started |= {output.request_id for output in engine.step()}
        begin = time.perf_counter()
        while engine.has_work():
            engine.step()
        return time.perf_counter() - begin

    return decode


def batched(reference: Any) -> Decode:
    """All prompts as one batch, padded on the left."""

    def decode(prompts: list[list[int]], tokens: int) -> float:
        width = max(map(len, prompts))
        padded = torch.zeros(len(prompts), width, dtype=torch.int64)
        mask = torch.zeros_like(padded)
        for row, prompt in enumerate(prompts):
            padded[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        return _generate(reference, padded, mask, tokens)

    return decode


def one_by_one(reference: Any) -> Decode:
    """The prompts one after another; their times add up."""

    def decode(prompts: list[list[int]], tokens: int) -> float:
        inputs = [torch.tensor([prompt]) for prompt in prompts]
        return sum(_generate(reference, ids, torch.ones_like(ids), tokens) for ids in inputs)

    return decode


class FirstToken(StoppingCriteria):
    """Stops nothing; notes when the first token was there."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        self.seconds = self.seconds or time.perf_counter()
        return torch.zeros(ids.shape[0], dtype=torch.bool)


def _generate(reference: Any, ids: torch.Tensor, mask: torch.Tensor, tokens: int) -> float:
    """Seconds from the first to the last of ``tokens`` tokens."""
    first = FirstToken()
    with torch.inference_mode():
        out = reference.generate(
            ids,
            attention_mask=mask,
            generation_config=GenerationConfig(max_new_tokens=tokens, pad_token_id=0),
            stopping_criteria=StoppingCriteriaList([first]),
        )
    end = time.perf_counter()
    assert out.shape[1] == ids.shape[1] + tokens
    return end - first.seconds


if __name__ == "__main__":
    main()

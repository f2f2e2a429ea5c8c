"""The vLLM side of ``vllm_agreement.py``: one engine; runs where vLLM is, without hy3.

    python benchmarks/vllm_case.py JOB.json OUT.json

JOB is ``{"model", "kv_cache_dtype", "drafts", "attention", "environment", "mend_bias", "prompts",
"shapes", "starts", "new_tokens", "stop"}``, prompts and starts as token ids. OUT gets the
log-probability of every prompt token per batch shape, the tokens of each step that took, greedy
texts with the gap between the two likeliest tokens, and draft counts; or what vLLM raised while it
loaded the model. vLLM's own log, which names its kernels, goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MAX_MODEL_TOKENS = 1024
MAX_BATCH_TOKENS = 8192
MAX_SEQUENCES = 32
CACHE_BYTES = 2 * 2**30
DRAFT_COUNTERS = "vllm:spec_decode_num_"
# Batch shape -> most tokens of one step, most of one prompt in it (0: no bound but the batch's).
# "single" runs one prompt after another.
SHAPES = {"together": (MAX_BATCH_TOKENS, 0), "single": (MAX_BATCH_TOKENS, 0)}
SHAPES |= {"pieces of 16": (16, 0), "token by token": (MAX_SEQUENCES, 1)}


def main() -> None:
    """Read the job, load the model, answer every question of the job."""
    job, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_USE_FLASHINFER_SAMPLER="0",
        VLLM_CPU_KVCACHE_SPACE="1",
        HF_HUB_OFFLINE="1",
        **job["environment"],
    )
    out.write_text(json.dumps(run(job)))


def run(job: dict[str, Any]) -> dict[str, Any]:
    """The answers, or ``refused`` with vLLM's message."""
    begin = time.perf_counter()
    result = facts()
    try:
        llm = start(job)
    # Whatever vLLM raises over a model is a finding to report, not a failure of this program.
    except Exception as fault:
        return result | {"refused": f"{type(fault).__name__}: {fault}"}
    result["start_seconds"] = round(time.perf_counter() - begin, 1)
    result["prompt_logprobs"], result["steps"] = {}, {}
    for shape in job["shapes"]:
        with steps_of(llm, shape) as steps:
            result["prompt_logprobs"][shape] = prompt_logprobs(llm, job["prompts"], shape)
        result["steps"][shape] = {"count": len(steps), "mean_tokens": sum(steps) / len(steps)}
    before = draft_counts(llm)
    result["greedy"] = greedy(llm, job)
    result["drafts"] = difference(draft_counts(llm), before)
    return result | {"seconds": round(time.perf_counter() - begin, 1)}


def facts() -> dict[str, Any]:
    """What the engine runs on."""
    import torch
    import vllm

    versions = {"vllm": vllm.__version__, "torch": torch.__version__, "cuda": torch.version.cuda}
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {"versions": versions, "gpu": gpu}


def start(job: dict[str, Any]) -> Any:
    """An engine small enough to share one GPU with others."""
    from vllm import LLM

    if job["mend_bias"]:
        mend_bias()
    drafts = {"method": "mtp", "num_speculative_tokens": job["drafts"]}
    attention = {}
    if job["attention"]:
        attention = {"attention_config": {"backend": job["attention"]}}
        drafts["attention_backend"] = job["attention"]
    return LLM(
        model=job["model"],
        skip_tokenizer_init=True,
        dtype="bfloat16",
        kv_cache_dtype=job["kv_cache_dtype"],
        speculative_config=drafts if job["drafts"] else None,
        max_model_len=MAX_MODEL_TOKENS,
        max_num_batched_tokens=MAX_BATCH_TOKENS,
        max_num_seqs=MAX_SEQUENCES,
        gpu_memory_utilization=0.04,
        kv_cache_memory_bytes=CACHE_BYTES,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        **attention,
    )


def mend_bias() -> None:
    """Have no bias mean False, as later releases do.

    vLLM 0.26 gives the fused q, k and v of this model ``bias=None``; the package humming writes a
    kernel's constants from what is a bool or a number, so that its kernel then lacks one.
    """
    from vllm.model_executor.models import hy_v3

    linear = hy_v3.QKVParallelLinear
    hy_v3.QKVParallelLinear = lambda *args, bias, **more: linear(*args, bias=bool(bias), **more)


@contextmanager
def steps_of(llm: Any, shape: str) -> Iterator[list[int]]:
    """Bound the tokens of a step meanwhile; the list tells how many each step had."""
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    schedule, steps = scheduler.schedule, []

    def counted(*arguments: Any, **more: Any) -> Any:
        output = schedule(*arguments, **more)
        steps.append(output.total_num_scheduled_tokens)
        return output

    def bound(step_tokens: int, prompt_tokens: int) -> None:
        # Read anew at every step.
        scheduler.max_num_scheduled_tokens = step_tokens
        scheduler.scheduler_config.long_prefill_token_threshold = prompt_tokens

    bound(*SHAPES[shape])
    scheduler.schedule = counted
    yield steps
    scheduler.schedule = schedule
    bound(*SHAPES["together"])


def prompt_logprobs(llm: Any, prompts: list[list[int]], shape: str) -> list[list[float]]:
    """Per prompt, the log-probability of each token but the first given those before it."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    inputs = [{"prompt_token_ids": ids} for ids in prompts]
    batches = [[each] for each in inputs] if shape == "single" else [inputs]
    outputs = [out for batch in batches for out in llm.generate(batch, params, use_tqdm=False)]
    return [
        [
            place[token].logprob
            for token, place in zip(ids[1:], out.prompt_logprobs[1:], strict=True)
        ]
        for ids, out in zip(prompts, outputs, strict=True)
    ]


def greedy(llm: Any, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Per start, the tokens of greedy text and how far the likeliest was ahead of the second."""
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0,
        max_tokens=job["new_tokens"],
        stop_token_ids=job["stop"],
        logprobs=2,
        detokenize=False,
    )
    inputs = [{"prompt_token_ids": ids} for ids in job["starts"]]
    outputs = [out.outputs[0] for out in llm.generate(inputs, params, use_tqdm=False)]
    return [
        {"tokens": list(out.token_ids), "gaps": [gap(place) for place in out.logprobs]}
        for out in outputs
    ]


def gap(place: dict[int, Any]) -> float:
    """Log-probability of the likeliest token less that of the second."""
    first, second = sorted((each.logprob for each in place.values()), reverse=True)[:2]
    return first - second


def draft_counts(llm: Any) -> dict[str, list[int]]:
    """The engine's own counters of drafts."""
    return {
        metric.name.removeprefix(DRAFT_COUNTERS): getattr(metric, "values", None) or [metric.value]
        for metric in llm.get_metrics()
        if metric.name.startswith(DRAFT_COUNTERS)
    }


def difference(after: dict[str, list[int]], before: dict[str, list[int]]) -> dict[str, list[int]]:
    """What was counted between two readings."""
    return {
        name: [one - other for one, other in zip(values, before[name], strict=True)]
        for name, values in after.items()
    }


if __name__ == "__main__":
    main()

"""The vLLM side of ``plan_kv_tokens.py``: the memory of one engine; runs without hy3.

    python benchmarks/vllm_memory.py JOB.json OUT.json

Imports vLLM, waits for a line on stdin, then starts the engine: the next process can import while
this one measures. JOB holds ``model`` (a folder), ``dummy`` (no weights there), ``kv_cache_dtype``,
``drafts``, ``context``, ``batched_tokens``, ``sequences``, ``utilization``, ``cache_bytes`` (0: by
the utilization), ``mode`` ("eager", "graphs" or "compiled"), ``speed`` (time decode steps) and
``uniform_routing``. OUT gets what the engine's own objects say of its memory, or what vLLM raised;
vLLM's log goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "HF_HUB_OFFLINE": "1",
}
# Every token chooses its experts at random, so that what a step reads is known.
UNIFORM = {"VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "uniform_random"}
PROMPT_TOKENS, NEW_TOKENS, ROUNDS = 128, 48, 2
BATCHES = (1, 8)
FREE_SHARE = 0.97  # of the GPU, before an engine measures it: the last one's memory is back
FREE_SECONDS = 20
ATTENTION = "TRITON_ATTN"
GRAPHS_WITHOUT_COMPILER = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}


def main() -> None:
    """Import, wait, measure."""
    job, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    os.environ.update(SETTINGS | (UNIFORM if job["uniform_routing"] else {}))
    import torch
    import vllm

    initialized = torch.cuda.is_initialized()
    sys.stdin.readline()
    begin = time.perf_counter()
    gpu = torch.cuda.is_available()
    result: dict[str, Any] = {
        "versions": {"vllm": vllm.__version__, "torch": torch.__version__},
        "gpu": torch.cuda.get_device_name(0) if gpu else None,
        "imported_onto_gpu": initialized,
    }
    try:
        if gpu:
            result["free_at_start"] = wait_for_memory()
        llm = start(job, gpu)
        result["start_seconds"] = round(time.perf_counter() - begin, 1)
        result |= llm.collective_rpc(memory_of)[0]
        if job["speed"]:
            out.write_text(json.dumps(result))
            result["speed"] = {batch: step_times(llm, batch, job) for batch in BATCHES}
    # Whatever vLLM raises over a model is a finding to report, not a failure of this program.
    except Exception as fault:
        result["refused"] = f"{type(fault).__name__}: {fault}"
    out.write_text(json.dumps(result | {"seconds": round(time.perf_counter() - begin, 1)}))


def wait_for_memory() -> int:
    """Free bytes of the GPU, once those of the engine before are given back."""
    import torch

    end = time.monotonic() + FREE_SECONDS
    while True:
        free, total = torch.cuda.mem_get_info()
        if free > FREE_SHARE * total or time.monotonic() > end:
            return int(free)
        time.sleep(0.2)


def start(job: dict[str, Any], gpu: bool) -> Any:
    """The engine, with every setting that its memory depends on given."""
    from vllm import LLM
    from vllm.model_executor.model_loader import dummy_loader

    dummy_loader.DummyModelLoader.load_weights = fill
    options: dict[str, Any] = {}
    if job["drafts"]:
        options["speculative_config"] = {"method": "mtp", "num_speculative_tokens": job["drafts"]}
    if job["mode"] == "graphs":
        options["compilation_config"] = GRAPHS_WITHOUT_COMPILER
    if job["cache_bytes"]:
        options["kv_cache_memory_bytes"] = job["cache_bytes"]
    if gpu:
        options["attention_config"] = {"backend": ATTENTION}
        options["gpu_memory_utilization"] = job["utilization"]
        if job["drafts"]:  # the drafter chooses for itself
            options["speculative_config"]["attention_backend"] = ATTENTION
    return LLM(
        model=job["model"],
        load_format="dummy" if job["dummy"] else "auto",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        kv_cache_dtype=job["kv_cache_dtype"],
        max_model_len=job["context"],
        max_num_batched_tokens=job["batched_tokens"],
        max_num_seqs=job["sequences"],
        enforce_eager=job["mode"] == "eager",
        enable_prefix_caching=False,
        disable_log_stats=False,
        **options,
    )


def fill(_loader: Any, model: Any, model_config: Any) -> None:
    """Weights that keep activations finite, in place of vLLM's own dummies.

    Those leave packed codes as they lie in memory and make the scales of NVFP4 negative.
    """
    import torch

    for name, tensor in model.state_dict().items():
        if tensor.device.type == "meta":
            continue
        with torch.no_grad():
            if tensor.dtype == torch.uint8:
                tensor.random_(0, 256)
            elif tensor.dtype == torch.float8_e4m3fn:
                tensor.fill_(1.0)
            elif not tensor.is_floating_point():
                continue
            elif "global_scale" in name:
                tensor.fill_(10_000.0)
            elif "norm" in name:
                tensor.fill_(1.0)
            elif "expert_bias" in name:
                tensor.zero_()
            elif tensor.dim() > 1:
                tensor.normal_(0, 1.0 if "embed" in name else 0.02)


def memory_of(worker: Any) -> dict[str, Any]:
    """What the engine's objects say; called in the worker, after all was allocated.

    Some of it exists on a GPU only, where vLLM measures a forward pass before it sizes its cache.
    """
    import torch

    runner, cache = worker.model_runner, worker.vllm_config.cache_config
    draft = worker.get_draft_model() if worker.speculative_config else None
    models = [runner.get_model(), *([] if draft is None else [draft])]
    found: dict[str, Any] = {
        "blocks": cache.num_gpu_blocks,
        "block_tokens": cache.block_size,
        "parameter_bytes": parameter_bytes(models),
        "weight_bytes": int(getattr(runner, "model_memory_usage", 0)),
    }
    for name in ("peak_activation_memory", "non_torch_memory", "cudagraph_memory_estimate"):
        found[name] = int(getattr(worker, name, 0) or 0)
    for name in ("requested_memory", "available_kv_cache_memory_bytes"):
        value = getattr(worker, name, None)
        found[name] = None if value is None else int(value)
    if torch.cuda.is_available():
        snapshot = worker.init_snapshot
        found["total_memory"] = int(snapshot.total_memory)
        found["free_memory"] = int(snapshot.free_memory)
        found["free_after_start"] = int(torch.cuda.mem_get_info()[0])
    return found


def parameter_bytes(models: list[Any]) -> int:
    """Of all weights together; what two modules share counts once."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for model in models
        for tensor in (*model.parameters(), *model.buffers())
    }
    return sum(storages.values())


def step_times(llm: Any, batch: int, job: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of a decode step of ``batch`` streams, best of several, and accepted drafts."""
    runs = [decode(llm, batch, job, f"{batch}-{number}") for number in range(ROUNDS + 1)]
    return min(runs[1:], key=lambda run: float(run["step_ms"]))  # the first warms up


def decode(llm: Any, batch: int, job: dict[str, Any], name: str) -> dict[str, float]:
    """One generation, timed from every stream's first token to the last token of all."""
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0.9, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False
    )
    engine = llm.llm_engine
    for number in range(batch):
        prompt = [10 + (number * 131 + i * 17) % 1000 for i in range(PROMPT_TOKENS)]
        engine.add_request(f"{name}-{number}", {"prompt_token_ids": prompt}, params)
    counts: dict[str, int] = {}
    while len(counts) < batch:
        counts |= tokens_of(engine.step())
    begun, accepted, begin = sum(counts.values()), accepted_drafts(llm), time.perf_counter()
    while engine.has_unfinished_requests():
        counts |= tokens_of(engine.step())
    seconds = time.perf_counter() - begin
    tokens, accepted = sum(counts.values()) - begun, accepted_drafts(llm) - accepted
    steps = (tokens - accepted) / batch
    return {
        "step_ms": round(seconds / steps * 1e3, 3),
        "tok_s_stream": round(tokens / batch / seconds, 2),
        "accepted_a_step": round(accepted / (tokens - accepted), 3),
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
    }


def tokens_of(outputs: list[Any]) -> dict[str, int]:
    """Request -> tokens generated so far."""
    counts = {out.request_id: len(out.outputs[0].token_ids) for out in outputs}
    return {request: count for request, count in counts.items() if count}


def accepted_drafts(llm: Any) -> int:
    """The engine's counter."""
    wanted = "vllm:spec_decode_num_accepted_tokens"
    return sum(metric.value for metric in llm.get_metrics() if metric.name == wanted)


if __name__ == "__main__":
    main()

"""The vLLM side of ``decode_speed.py``: runs in an environment that has vLLM, not hy3.

Reads ``{"model", "tokens", "rounds", "drafts", "threads", "batches": [[token ids, ...], ...]}``
on stdin; prints one JSON object: the version, and per batch the seconds of decode of every round.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Build the engine once, measure every batch."""
    job = json.load(sys.stdin)
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_LOGGING_LEVEL="ERROR",
        HF_HUB_OFFLINE="1",
        OMP_NUM_THREADS=str(job["threads"]),
    )
    from vllm import LLM, __version__

    drafts = {"method": "mtp", "num_speculative_tokens": job["drafts"]}
    llm = LLM(
        model=job["model"],
        dtype="bfloat16",
        max_model_len=1024,
        enforce_eager=True,
        speculative_config=drafts if job["drafts"] else None,
        enable_prefix_caching=False,
    )
    results = []
    for batch in job["batches"]:
        seconds = [decode(llm, batch, job["tokens"], i) for i in range(job["rounds"] + 1)]
        results.append(seconds[1:])  # the first round warms up
    print("\n" + json.dumps({"version": __version__, "seconds": results}))


def decode(llm: Any, batch: list[list[int]], tokens: int, run: int) -> float:
    """Seconds from every stream's first token to the last token."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    engine = llm.llm_engine
    for index, prompt in enumerate(batch):
        engine.add_request(f"{run}-{index}", {"prompt_token_ids": prompt}, params)
    started: set[str] = set()
    while len(started) < len(batch):
        started |= {out.request_id for out in engine.step() if out.outputs[0].token_ids}
    begin = time.perf_counter()
    while engine.has_unfinished_requests():
        engine.step()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()

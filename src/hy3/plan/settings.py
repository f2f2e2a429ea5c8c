"""``Settings``: how an engine is to be run, every choice made; "auto" never stands here."""

from __future__ import annotations

from dataclasses import dataclass

VLLM, SGLANG, NATIVE = "vllm", "sglang", "native"
ENGINES = (VLLM, SGLANG, NATIVE)
KV_DTYPE_BYTES = {"bf16": 2, "fp8": 1}


@dataclass(frozen=True)
class Settings:
    """One launch; counts are of tokens and sequences."""

    engine: str
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    kv_dtype: str = "bf16"
    context: int = 32768  # the longest sequence
    concurrency: int = 1  # sequences at a time
    draft_depth: int = 0
    graphs: bool = True  # CUDA graphs; False is eager
    batched_tokens: int = 8192  # most tokens in one step of prefill
    utilization: float | None = None  # of visible memory; None: from what is free

    @property
    def ranks(self) -> int:
        """Devices that hold a part of the model."""
        return self.tensor_parallel * self.pipeline_parallel

"""``EngineConfig``: the sizes that an engine is built with; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hy3.errors import InputError

KvDtype = Literal["bf16", "fp32", "fp8"]


@dataclass(frozen=True)
class EngineConfig:
    """Limits and sizes; everything is resolved, nothing here means "auto".

    ``max_step_tokens`` bounds the rows of one forward pass, decodes and prompt chunks together.
    ``max_context`` bounds prompt plus output of one request. ``draft_depth`` of 0 is off.
    """

    num_blocks: int
    max_context: int
    block_size: int = 16
    max_requests: int = 8
    max_step_tokens: int = 512
    draft_depth: int = 1
    kv_dtype: KvDtype = "bf16"
    prefix_reuse: bool = True

    def __post_init__(self) -> None:
        for name in ("num_blocks", "max_context", "block_size", "max_requests", "max_step_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}", "use at least 1", name)
        if self.draft_depth < 0:
            raise InputError(f"draft_depth is {self.draft_depth}", "use 0 or more", "draft_depth")
        if self.max_step_tokens < self.max_requests:
            raise InputError(
                f"max_step_tokens {self.max_step_tokens} is below max_requests {self.max_requests}",
                hint="leave room for one token of every request in a step",
                where="max_step_tokens",
            )

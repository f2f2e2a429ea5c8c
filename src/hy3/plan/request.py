"""``Request``: what the user asks of a plan, and what is taken where nothing is said."""

from __future__ import annotations

from dataclasses import dataclass

from hy3.errors import InputError

# Hy3's drafts: position 1 was accepted in 62 to 76 of 100 steps, position 2 in 18 to 21; so one in
# three of those after the first.
HY3_ACCEPTANCE = (0.69, 0.29, 0.29, 0.29)
ACCEPTANCE_SOURCE = "https://github.com/tonyd2wild/Hy3-295B-NVFP4-MTP-2x-DGX-Spark"
_USUAL_SEQUENCE = 1024


@dataclass(frozen=True)
class Request:
    """What the user asks; None leaves the choice to the planner."""

    concurrency: int
    context: int | None = None
    engine: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    draft_depth: int | None = None
    kv_dtype: str | None = None
    graphs: bool | None = None
    utilization: float | None = None
    free_bytes: int | None = None  # measured on the machine itself
    sequence_tokens: int | None = None  # in each sequence's cache, on average, for the speed
    # Of each draft, given that those before it were accepted; None for what is known of Hy3.
    acceptance: tuple[float, ...] | None = None

    @property
    def acceptances(self) -> tuple[float, ...]:
        """Stated or known, for each draft as far as either goes."""
        return HY3_ACCEPTANCE if self.acceptance is None else self.acceptance

    def tokens_of_a_sequence(self, context: int) -> int:
        """In the cache on average; InputError when more are asked for than the context holds."""
        if self.sequence_tokens is None:
            return min(_USUAL_SEQUENCE, context)
        if self.sequence_tokens > context:
            raise InputError(
                f"{self.sequence_tokens} tokens do not fit into a context of {context}",
                hint="lower it, or raise --context",
                where="--sequence-tokens",
            )
        return self.sequence_tokens

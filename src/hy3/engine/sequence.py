"""``Sequence``: the engine's state of one request while it is worked on; no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hy3.engine.kv_blocks import ROOT
from hy3.engine.request import FinishReason, Request, Usage

if TYPE_CHECKING:
    from hy3.engine.grammar import Matcher
    from hy3.engine.history import TokenHistory


@dataclass(eq=False)
class Sequence:
    """Tokens, their cached positions, and the drafts for what may follow.

    Positions below ``num_computed`` have their K/V in ``blocks``, the MTP layer's included when
    drafts are on. The last token is always still to be computed.
    """

    request: Request
    stop_ids: frozenset[int]
    seed: int  # 64 bits; the request's own or a random one
    matcher: Matcher | None = None
    history: TokenHistory | None = None  # present when penalties need it
    token_ids: list[int] = field(default_factory=list)  # prompt, then output
    drafts: list[int] = field(default_factory=list)
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    num_published: int = 0  # leading blocks that are in the pool's chain
    link: int = ROOT  # where that chain goes on
    cached_tokens: int | None = None  # of the prompt, found at the first admission
    drafted: list[int] = field(default_factory=list)  # per draft position
    accepted: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_ids)

    @property
    def num_output(self) -> int:
        """Tokens produced so far."""
        return len(self.token_ids) - len(self.request.prompt_ids)

    @property
    def num_left(self) -> int:
        """Tokens that may still be produced."""
        return self.request.params.max_tokens - self.num_output

    @property
    def max_length(self) -> int:
        """Prompt and output at most."""
        return len(self.request.prompt_ids) + self.request.params.max_tokens

    @property
    def num_pending(self) -> int:
        """Known tokens that are not computed yet; 1 while decoding, more in prefill."""
        return len(self.token_ids) - self.num_computed

    def usage(self) -> Usage:
        """The account of a finished request."""
        return Usage(
            prompt_tokens=len(self.request.prompt_ids),
            output_tokens=self.num_output,
            cached_tokens=self.cached_tokens or 0,
            drafted=tuple(self.drafted),
            accepted=tuple(self.accepted),
        )

"""Drafts: which of them the target confirms, and what the MTP layer proposes next.

The MTP layer proposes its most likely token, so drafts are no draws. Taking the target's own
choice at each position and keeping drafts as long as they equal it therefore accepts draft d with
probability p(d), and on refusal the token is distributed as p without d: exactly the target's
distribution, and at temperature 0 exactly its argmax.
"""

from __future__ import annotations

from collections.abc import Sequence as Sized
from itertools import accumulate

from torch import Tensor

from hy3.engine.runner import Runner, Span, take_rows
from hy3.engine.scheduler import Chunk
from hy3.engine.sequence import Sequence


def verify(drafts: Sized[int], choices: list[int]) -> list[int]:
    """The new tokens: the drafts that equal the target's choices, then one choice more.

    Args:
        choices: the target's token at the last known position and after each draft
    """
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == choices[accepted]:
        accepted += 1
    return choices[: accepted + 1]


class Drafter:
    """Runs the MTP layer after each pass: completes its cache and proposes ``depth`` tokens."""

    def __init__(self, runner: Runner, depth: int) -> None:
        self._runner = runner
        self._depth = depth

    def propose(self, chunks: Sized[Chunk], hidden: Tensor) -> None:
        """Set the drafts of every sequence that goes on; call when the new tokens are known.

        The rows that the step settled get their MTP entries from the target's hidden states,
        finished sequences' too, because their blocks are published. Entries that deeper drafts
        write ahead are overwritten by the next step.

        Args:
            hidden: [rows, hidden] of the target pass over ``chunks``
        """
        if not self._depth:
            return
        spans: list[Span] = []
        kept_rows: list[int] = []
        first_row = 0
        for chunk in chunks:
            span = Span(chunk.sequence, chunk.start, chunk.sequence.num_computed)
            spans.append(span)
            kept_rows += range(first_row, first_row + span.length)
            first_row += chunk.num_rows
        following = [_following(span) for span in spans]
        hidden = self._runner.draft(spans, following, take_rows(hidden, kept_rows))
        last_rows = [end - 1 for end in accumulate(span.length for span in spans)]
        self._extend(spans, take_rows(hidden, last_rows))

    def _extend(self, spans: list[Span], hidden: Tensor) -> None:
        """Draft token after token from ``hidden``, [spans, hidden], each span's last state."""
        for span in spans:
            span.sequence.drafts = []
        for depth in range(1, self._depth + 1):
            going = [i for i, span in enumerate(spans) if _wants_draft(span.sequence, depth)]
            if not going:
                return
            hidden = take_rows(hidden, going)
            spans = [spans[i] for i in going]
            if depth > 1:
                spans = [Span(span.sequence, span.end, span.end + 1) for span in spans]
                following = [span.sequence.drafts[-1:] for span in spans]
                hidden = self._runner.draft(spans, following, hidden)
            for span, token in zip(spans, self._runner.argmax(hidden), strict=True):
                span.sequence.drafts.append(token)


def _following(span: Span) -> list[int]:
    """The tokens one position after the span's."""
    return span.sequence.token_ids[span.start + 1 : span.end + 1]


def _wants_draft(sequence: Sequence, depth: int) -> bool:
    """Whether a draft at ``depth`` can become output: the bonus token after it needs room too."""
    decoding = sequence.finish_reason is None and sequence.num_pending == 1
    return decoding and depth < sequence.num_left

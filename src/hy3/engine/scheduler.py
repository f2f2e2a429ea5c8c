"""``Scheduler``: which tokens of which sequences the next forward pass computes.

Decodes come first, then prompts in chunks while rows are left. A prompt's blocks are taken as a
whole when it is admitted, so only decodes can find the pool empty; they then preempt the youngest
sequence, which drops its cache and waits at the front of the queue to be recomputed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Sized
from dataclasses import dataclass

from hy3.engine.config import EngineConfig
from hy3.engine.kv_blocks import ROOT, BlockPool
from hy3.engine.sequence import Sequence


@dataclass(frozen=True)
class Chunk:
    """The rows of one sequence in one pass: its pending tokens, then drafts to verify."""

    sequence: Sequence
    start: int  # position of the first row
    num_known: int  # rows of tokens that are decided
    drafts: tuple[int, ...]
    samples: bool  # the last known token is among the rows, so new ones follow from it

    @property
    def num_rows(self) -> int:
        """Rows in the flat batch."""
        return self.num_known + len(self.drafts)


class Scheduler:
    """Owns the queue, the running list and, through the pool, the blocks of every sequence."""

    def __init__(self, config: EngineConfig, pool: BlockPool) -> None:
        self.config = config
        self.pool = pool
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # oldest first
        self.preemptions = 0
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; the caller has checked that it can ever fit."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence at any time between steps and free what it holds."""
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self._release(sequence)

    def schedule(self) -> list[Chunk]:
        """The next step's chunks, at most ``max_step_tokens`` rows together.

        Empty only if nothing waits or runs.
        """
        preemptions = self.preemptions
        chunks = self._decodes()
        rows = self.config.max_step_tokens - sum(chunk.num_rows for chunk in chunks)
        decoding = {chunk.sequence for chunk in chunks}
        for sequence in self.running:
            if sequence not in decoding and rows:
                chunks.append(self._prefill(sequence, rows))
                rows -= chunks[-1].num_rows
        if self.preemptions == preemptions:
            chunks += self._admissions(rows)
        return chunks

    def settle(self, chunks: Sized[Chunk]) -> None:
        """After the step: publish the blocks that became full, drop the finished sequences."""
        for chunk in chunks:
            sequence = chunk.sequence
            if self.config.prefix_reuse:
                self._publish(sequence)
            if sequence.finish_reason:
                self.remove(sequence)

    def _decodes(self) -> list[Chunk]:
        chunks = []
        decoding = [sequence for sequence in self.running if sequence.num_pending == 1]
        spare_rows = self.config.max_step_tokens - len(decoding)
        for sequence in decoding:
            drafts = tuple(sequence.drafts[:spare_rows])
            if self._reserve_or_preempt(sequence, 1 + len(drafts)):
                chunks.append(Chunk(sequence, sequence.num_computed, 1, drafts, samples=True))
                spare_rows -= len(drafts)
        return chunks

    def _prefill(self, sequence: Sequence, rows: int) -> Chunk:
        pending = sequence.num_pending
        count = min(pending, rows)
        return Chunk(sequence, sequence.num_computed, count, (), samples=count == pending)

    def _admissions(self, rows: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        for sequence in list(self.waiting):
            if not rows or len(self.running) == self.config.max_requests:
                break
            shared = self.pool.lookup(sequence.token_ids) if self.config.prefix_reuse else []
            if self._prefix_is_coming(sequence, len(shared)):
                continue
            if not self._admit(sequence, shared):
                break
            chunks.append(self._prefill(sequence, rows))
            rows -= chunks[-1].num_rows
        return chunks

    def _prefix_is_coming(self, sequence: Sequence, num_shared: int) -> bool:
        """Whether a running sequence is about to publish the next block of this one's prefix."""
        end = (num_shared + 1) * self.pool.block_size + 1
        if not self.config.prefix_reuse or len(sequence.token_ids) < end:
            return False
        prefix = sequence.token_ids[:end]
        return any(
            other.num_published <= num_shared and other.token_ids[:end] == prefix
            for other in self.running
        )

    def _admit(self, sequence: Sequence, shared: list[int]) -> bool:
        for block in shared:
            self.pool.hold(block)
        sequence.blocks = list(shared)
        if not self._reserve(sequence, len(sequence.token_ids)):
            self._release(sequence)
            return False
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.num_computed = len(shared) * self.pool.block_size
        sequence.num_published = len(shared)
        sequence.link = self.pool.link(shared[-1]) if shared else ROOT
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.num_computed
            self.prefix_query_tokens += len(sequence.token_ids)
            self.prefix_hit_tokens += sequence.num_computed
        return True

    def _reserve_or_preempt(self, sequence: Sequence, rows: int) -> bool:
        """Room for ``rows`` more, at the cost of younger sequences; False if itself preempted."""
        if sequence not in self.running:
            return False
        while not self._reserve(sequence, sequence.num_computed + rows):
            youngest = self.running.pop()
            self._release(youngest)
            self.waiting.appendleft(youngest)
            self.preemptions += 1
            if youngest is sequence:
                return False
        return True

    def _reserve(self, sequence: Sequence, positions: int) -> bool:
        """Extend the table over ``positions`` and over what the next drafts write ahead of them."""
        ahead = max(self.config.draft_depth - 1, 0)
        positions = min(positions + ahead, sequence.max_length)
        missing = self.pool.blocks_for(positions) - len(sequence.blocks)
        if missing > self.pool.available:
            return False
        sequence.blocks += [self.pool.allocate() for _ in range(missing)]
        return True

    def _publish(self, sequence: Sequence) -> None:
        full = sequence.num_computed // self.pool.block_size
        while sequence.num_published < full:
            key = self.pool.key(sequence.link, sequence.token_ids, sequence.num_published)
            assert key is not None, "the token after a computed position is known"
            sequence.link = self.pool.publish(sequence.blocks[sequence.num_published], key)
            sequence.num_published += 1

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.drafts = []
        sequence.num_computed = sequence.num_published = 0
        sequence.link = ROOT

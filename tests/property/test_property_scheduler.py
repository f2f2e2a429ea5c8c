"""Random workloads against the scheduler: blocks, budgets, and what every cached entry stands for.

The machine plays the model: for each row it notes at the row's slot which tokens the entry was
computed from, and reads all earlier entries back through the block table, as attention would. The
MTP layer's entries are noted apart, with the token that follows.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hy3.engine.config import EngineConfig
from hy3.engine.kv_blocks import BlockPool
from hy3.engine.request import Request, SamplingParams
from hy3.engine.scheduler import Scheduler
from hy3.engine.sequence import Sequence
from support.planted_pools import KeyWithoutChain, KeyWithoutNextToken

TOKENS = st.integers(0, 1)  # few, so that prefixes repeat


class Workload(RuleBasedStateMachine):
    """Arrivals, steps with partly accepted drafts, and aborts, in any order."""

    pool_class = BlockPool
    scheduler_class = Scheduler

    @initialize(
        block_size=st.integers(1, 4),
        max_requests=st.integers(1, 4),
        draft_depth=st.integers(0, 3),
        prefix_reuse=st.booleans(),
        data=st.data(),
    )
    def build(self, block_size, max_requests, draft_depth, prefix_reuse, data):
        self.config = EngineConfig(
            num_blocks=data.draw(st.integers(-(-24 // block_size), 40)),
            max_context=24,
            block_size=block_size,
            max_requests=max_requests,
            max_step_tokens=data.draw(st.integers(max_requests, 12)),
            draft_depth=draft_depth,
            prefix_reuse=prefix_reuse,
        )
        self.pool = self.pool_class(self.config.num_blocks, block_size)
        self.scheduler = self.scheduler_class(self.config, self.pool)
        self.trunk: dict[int, tuple[int, ...]] = {}  # slot -> tokens that its entry comes from
        self.mtp: dict[int, tuple[int, ...]] = {}
        self.count = 0

    @rule(prompt=st.lists(TOKENS, min_size=1, max_size=16), max_tokens=st.integers(1, 8))
    def arrive(self, prompt, max_tokens):
        request = Request(str(self.count), tuple(prompt), SamplingParams(max_tokens=max_tokens))
        self.scheduler.add(Sequence(request, frozenset(), seed=0))
        self.count += 1

    @precondition(lambda self: self.sequences())
    @rule(data=st.data())
    def abort(self, data):
        victim = data.draw(st.sampled_from(self.sequences()))
        self.scheduler.remove(victim)
        assert victim not in self.sequences()

    @rule(data=st.data())
    def step(self, data):
        chunks = self.scheduler.schedule()
        assert bool(chunks) == bool(self.sequences()), "work must go on while there is any"
        assert sum(chunk.num_rows for chunk in chunks) <= self.config.max_step_tokens
        assert len({chunk.sequence for chunk in chunks}) == len(chunks)
        for chunk in chunks:
            self.run(chunk)
        for chunk in chunks:
            self.finish(chunk, data)
        self.scheduler.settle(chunks)

    def slot(self, sequence, position):
        size = self.config.block_size
        return sequence.blocks[position // size] * size + position % size

    def run(self, chunk):
        """Write the rows, then read the whole context back."""
        sequence = chunk.sequence
        tokens = [*sequence.token_ids, *chunk.drafts]
        end = chunk.start + chunk.num_rows
        for position in range(chunk.start, end):
            slot = self.slot(sequence, position)
            owners = [
                s for s in self.scheduler.running if slot // self.config.block_size in s.blocks
            ]
            assert owners == [sequence], "a shared block is never written"
            self.trunk[slot] = tuple(tokens[: position + 1])
        for position in range(end):
            assert self.trunk[self.slot(sequence, position)] == tuple(tokens[: position + 1])

    def finish(self, chunk, data):
        """Accept some drafts, add a token, propose new drafts; the MTP layer follows."""
        sequence = chunk.sequence
        kept = 0
        if chunk.samples:
            kept = data.draw(st.integers(0, len(chunk.drafts)))
            new = [*chunk.drafts[:kept], data.draw(TOKENS)][: sequence.num_left]
            kept = len(new) - 1
            sequence.token_ids += new
        computed = sequence.num_computed + chunk.num_known + kept
        if self.config.draft_depth:
            for position in range(chunk.start, computed):
                following = tuple(sequence.token_ids[: position + 2])
                assert len(following) == position + 2
                self.mtp[self.slot(sequence, position)] = following
            for position in range(computed):
                following = tuple(sequence.token_ids[: position + 2])
                assert self.mtp[self.slot(sequence, position)] == following
        sequence.num_computed = computed
        if sequence.num_left == 0:
            sequence.finish_reason = "length"
        elif chunk.samples:
            depth = min(self.config.draft_depth, sequence.num_left - 1)
            sequence.drafts = data.draw(st.lists(TOKENS, min_size=depth, max_size=depth))
            for position in range(computed, computed + depth - 1):
                self.mtp[self.slot(sequence, position)] = ("draft",)

    def sequences(self):
        return [*self.scheduler.running, *self.scheduler.waiting]

    @invariant()
    def blocks_are_accounted_for(self):
        if hasattr(self, "pool"):
            self.pool.check(sequence.blocks for sequence in self.sequences())
            assert all(not sequence.blocks for sequence in self.scheduler.waiting)
            assert len(self.scheduler.running) <= self.config.max_requests

    def teardown(self):
        """Whatever is left finishes in a bounded number of steps and frees everything."""
        if not hasattr(self, "pool"):
            return
        for sequence in self.sequences():
            self.scheduler.remove(sequence)
        self.pool.check([])
        assert self.pool.available == self.config.num_blocks


TestWorkload = Workload.TestCase
TestWorkload.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class LeakyScheduler(Scheduler):
    """Forgets the last block of a removed sequence."""

    def _release(self, sequence):
        sequence.blocks = sequence.blocks[:-1]
        super()._release(sequence)


@pytest.mark.parametrize("fault", [KeyWithoutNextToken, KeyWithoutChain, LeakyScheduler])
def test_planted_faults_are_found(fault):
    name = "pool_class" if issubclass(fault, BlockPool) else "scheduler_class"
    machine = type("Planted", (Workload,), {name: fault})
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=300,
                stateful_step_count=30,
                deadline=None,
                phases=[Phase.generate],
                database=None,
                derandomize=True,
            ),
        )


def drain(prompts, max_tokens, **config):
    """Run requests to their end with every draft accepted; returns steps and the scheduler."""
    config = EngineConfig(**{"num_blocks": 40, "max_context": 64, "block_size": 4, **config})
    scheduler = Scheduler(config, BlockPool(config.num_blocks, config.block_size))
    for index, prompt in enumerate(prompts):
        request = Request(str(index), tuple(prompt), SamplingParams(max_tokens=max_tokens))
        scheduler.add(Sequence(request, frozenset(), seed=0))
    steps = []
    while chunks := scheduler.schedule():
        steps.append([dataclasses.replace(chunk) for chunk in chunks])
        for chunk in chunks:
            sequence = chunk.sequence
            sequence.num_computed += chunk.num_rows
            if chunk.samples:
                sequence.token_ids += [*chunk.drafts, 7][: sequence.num_left]
                sequence.num_computed = len(sequence.token_ids) - 1
            if sequence.num_left == 0:
                sequence.finish_reason = "length"
        scheduler.settle(chunks)
        assert len(steps) < 1000
    scheduler.pool.check([])
    return steps, scheduler


def rows(step):
    return [(chunk.sequence.request.id, chunk.start, chunk.num_rows) for chunk in step]


def test_prompts_are_chunked_behind_decodes():
    steps, _ = drain([[1] * 3, [2] * 9], 4, max_step_tokens=4, max_requests=2)
    assert rows(steps[0]) == [("0", 0, 3), ("1", 0, 1)]
    assert rows(steps[1]) == [("0", 3, 1), ("1", 1, 3)]
    assert rows(steps[2]) == [("0", 4, 1), ("1", 4, 3)]


def test_a_shared_prompt_is_computed_once():
    steps, scheduler = drain([list(range(10))] * 3, 2, prefix_reuse=True)
    assert rows(steps[0]) == [("0", 0, 10)]
    assert rows(steps[1])[1:] == [("1", 8, 2), ("2", 8, 2)]
    assert scheduler.prefix_hit_tokens == 16
    assert scheduler.prefix_query_tokens == 30


def test_the_youngest_is_preempted_and_comes_back_first():
    steps, scheduler = drain([[1] * 8, [2] * 8, [3] * 8], 12, num_blocks=7, draft_depth=0)
    assert scheduler.preemptions > 0
    finished_first = [chunk.sequence.request.id for chunk in steps[-1]]
    assert finished_first == ["2"], "the youngest ends last"
    assert all(len(step) <= 3 for step in steps)

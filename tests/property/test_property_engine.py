"""Random workloads against the whole engine: tokens never depend on batch, drafts or cache."""

from __future__ import annotations

import pytest
import torch
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

from hy3.engine.engine import Engine, EngineConfig
from hy3.engine.kv_blocks import BlockPool
from hy3.engine.request import Request, SamplingParams
from hy3.engine.sampler import uniform
from support.cached_model import EOS, VOCAB, CachedModel, prefix_logits
from support.planted_pools import KeyWithoutChain, KeyWithoutNextToken

CONTEXT = 32


def expected_tokens(request):
    """The request alone, token by token, without cache, drafts or batch."""
    params, token_ids, output = request.params, list(request.prompt_ids), []
    while len(output) < params.max_tokens:
        logits = prefix_logits(token_ids).double()
        if params.temperature == 0:
            token = int(logits.argmax())
        else:
            sums = (logits / params.temperature).softmax(-1).cumsum(-1)
            token = int((sums <= uniform(params.seed, len(output))).sum())
        token_ids.append(token)
        output.append(token)
        if token == EOS and not params.ignore_eos:
            break
    return output


class Traffic(RuleBasedStateMachine):
    """Arrivals, steps and aborts in any order on engines of any size."""

    pool_class = BlockPool

    @initialize(
        block_size=st.integers(1, 5),
        max_requests=st.integers(1, 4),
        draft_depth=st.integers(0, 3),
        prefix_reuse=st.booleans(),
        data=st.data(),
    )
    def build(self, block_size, max_requests, draft_depth, prefix_reuse, data):
        config = EngineConfig(
            num_blocks=data.draw(st.integers(-(-CONTEXT // block_size), 48)),
            max_context=CONTEXT,
            block_size=block_size,
            max_requests=max_requests,
            max_step_tokens=data.draw(st.integers(max_requests, 16)),
            draft_depth=draft_depth,
            prefix_reuse=prefix_reuse,
        )
        self.engine = Engine(CachedModel(), config)
        pool = self.pool_class(config.num_blocks, block_size)
        self.engine._blocks = self.engine._scheduler.pool = pool
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[int]] = {}
        self.count = 0

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        max_tokens=st.integers(1, 12),
        temperature=st.sampled_from([0.0, 0.8]),
        seed=st.integers(0, 3),
        ignore_eos=st.booleans(),
    )
    def arrive(self, prompt, max_tokens, **params):
        params = SamplingParams(max_tokens=max_tokens, **params)
        request = Request(str(self.count), tuple(prompt), params)
        self.count += 1
        self.engine.add(request)
        self.requests[request.id] = request
        self.outputs[request.id] = []

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data):
        self.engine.abort(data.draw(st.sampled_from(sorted(self.requests))))

    @rule(steps=st.integers(1, 4))
    def run(self, steps):
        for _ in range(steps):
            self.step()

    def step(self):
        for output in self.engine.step():
            request = self.requests[output.request_id]
            produced = self.outputs[output.request_id]
            produced += output.token_ids
            expected = expected_tokens(request)
            assert produced == expected[: len(produced)]
            if output.finish_reason:
                del self.requests[output.request_id]
                assert output.usage.output_tokens == len(produced)
                assert sum(output.usage.accepted) <= sum(output.usage.drafted)
            if output.finish_reason in ("stop", "length"):
                assert produced == expected
                stopped = expected[-1] == EOS and not request.params.ignore_eos
                assert output.finish_reason == ("stop" if stopped else "length")
                assert output.stop_token_id == (EOS if stopped else None)
            elif output.finish_reason is None:
                assert output.usage is None

    @invariant()
    def blocks_are_accounted_for(self):
        if hasattr(self, "engine"):
            self.engine.check_blocks()
            assert self.engine.has_work() == bool(self.requests)

    def teardown(self):
        if hasattr(self, "engine"):
            for _ in range(2000):
                if not self.engine.has_work():
                    break
                self.step()
            assert not self.requests, "every request ends"
            assert self.engine.stats().kv_blocks_used == 0


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("fault", [KeyWithoutNextToken, KeyWithoutChain])
def test_planted_cache_faults_are_found(fault):
    machine = type("Planted", (Traffic,), {"pool_class": fault})
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=200,
                stateful_step_count=20,
                deadline=None,
                phases=[Phase.generate],
                database=None,
                derandomize=True,
            ),
        )


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_traffic_long():
    settings_long = settings(max_examples=2000, stateful_step_count=60, deadline=None)
    run_state_machine_as_test(Traffic, settings=settings_long)


def generate(params, draft_depth=0, prompts=((1, 2, 3),), **config):
    config = EngineConfig(num_blocks=64, max_context=96, draft_depth=draft_depth, **config)
    engine = Engine(CachedModel(), config)
    for index, prompt in enumerate(prompts):
        engine.add(Request(str(index), tuple(prompt), params))
    outputs = {}
    while engine.has_work():
        for output in engine.step():
            outputs.setdefault(output.request_id, []).extend(output.token_ids)
    return outputs, engine.stats()


def test_drafts_save_steps_and_are_counted():
    params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
    plain, without = generate(params)
    drafted, stats = generate(params, draft_depth=2)
    assert plain == drafted
    assert without.steps == 60
    assert stats.steps == stats.output_tokens - sum(stats.accepted)
    assert stats.accepted[0] > 20, "two drafts in three are right"
    assert stats.accepted[1] < stats.accepted[0]


def test_prefix_reuse_covers_generated_tokens_of_an_earlier_turn():
    params = SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)
    config = EngineConfig(num_blocks=64, max_context=96, block_size=4, draft_depth=1)
    engine = Engine(CachedModel(), config)
    engine.add(Request("first", (1, 2, 3), params))
    tokens = [1, 2, 3]
    while engine.has_work():
        tokens += [token for output in engine.step() for token in output.token_ids]
    second = Request("second", (*tokens, 5, 6), params)
    engine.add(second)
    produced = []
    while engine.has_work():
        (output,) = engine.step()
        produced += output.token_ids
    assert output.usage.cached_tokens == 8, "11 tokens had both caches filled"
    assert produced == expected_tokens(second)


def test_vocabulary_is_as_assumed():
    assert prefix_logits([1, 2]).shape == (VOCAB,)
    assert not torch.equal(prefix_logits([1, 2]), prefix_logits([2, 1]))

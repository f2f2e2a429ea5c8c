"""The engine on real forward passes: random weights for the cache, scripted ones for drafts."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats

from hy3.engine.engine import Engine, EngineConfig
from hy3.engine.request import Request, SamplingParams, fan_out
from hy3.errors import InputError
from hy3.model.decoder import load_model
from support.chat_files import TINY_SUFFIX, make_tokenizer
from support.running import complete, make_engine, run_all, tokens_of
from support.scripted import make_random, make_scripted

SHALLOW = {"num_hidden_layers": 2, "num_experts": 4, "hidden_size": 32}
GREEDY = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_random(tmp_path_factory.mktemp("random"), seed=3, **SHALLOW)


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    """Two first drafts in three are right; BF16, so the fast kernels run."""
    return load_model(make_scripted(tmp_path_factory.mktemp("scripted"), mtp_noise=2.0))


def make_prompts(count, vocab, seed=0):
    """Prompts of 3 to 41 tokens; every third shares 32 tokens with its neighbour."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, vocab, 3 + 7 * i % 39).tolist() for i in range(count)]
    shared = rng.integers(0, vocab, 33).tolist()
    return [shared + prompt[:8] if i % 3 == 0 else prompt for i, prompt in enumerate(prompts)]


@pytest.fixture(scope="module")
def prompts(model):
    return make_prompts(12, model.config.vocab_size)


@pytest.fixture(scope="module")
def alone(model, prompts):
    """Each prompt's greedy tokens by whole forward passes, without engine and cache."""
    return {str(i): greedy_alone(model, prompt, 16) for i, prompt in enumerate(prompts)}


def greedy_alone(model, prompt, count):
    token_ids = list(prompt)
    for _ in range(count):
        hidden = model.forward_full(torch.tensor(token_ids))
        token_ids.append(int(model.logits(hidden[-1:]).argmax()))
    return token_ids[len(prompt) :]


@pytest.mark.parametrize("draft_depth", [0, 1, 2, 3])
@pytest.mark.parametrize("max_requests", [1, 8])
def test_greedy_tokens_depend_on_the_prompt_alone(model, prompts, alone, draft_depth, max_requests):
    got = complete(model, prompts, GREEDY, draft_depth=draft_depth, max_requests=max_requests)
    assert got == alone


@pytest.mark.parametrize(
    "config",
    [
        {"prefix_reuse": False},
        {"max_step_tokens": 9},
        {"block_size": 1},
        {"block_size": 7, "draft_depth": 3, "max_step_tokens": 24},
    ],
    ids=str,
)
def test_greedy_tokens_depend_on_no_setting(model, prompts, alone, config):
    assert complete(model, prompts, GREEDY, **config) == alone


def test_preemption_changes_no_token(model, prompts, alone):
    engine = make_engine(model, num_blocks=9, max_context=72, block_size=8, draft_depth=2)
    requests = [Request(str(i), tuple(prompt), GREEDY) for i, prompt in enumerate(prompts)]
    assert tokens_of(run_all(engine, requests)) == alone
    assert engine.stats().preemptions > 0


def test_prefixes_are_found_again(model, prompts, alone):
    engine = make_engine(model, draft_depth=1)
    for _ in range(2):
        requests = [Request(str(i), tuple(prompt), GREEDY) for i, prompt in enumerate(prompts)]
        outputs = run_all(engine, requests)
        assert tokens_of(outputs) == alone
    for index, prompt in enumerate(prompts):
        usage = outputs[str(index)][-1].usage
        assert usage.cached_tokens == (len(prompt) - 1) // 16 * 16
        assert usage.prompt_tokens == len(prompt)


def test_completions_of_one_prompt_share_its_blocks(model, prompts):
    request = Request("r", tuple(prompts[0]), SamplingParams(max_tokens=8, seed=5))
    engine = make_engine(model)
    outputs = run_all(engine, fan_out(request, 4))
    cached = [outputs[f"r-{i}"][-1].usage.cached_tokens for i in range(4)]
    assert cached == [0, 32, 32, 32]
    tokens = list(tokens_of(outputs).values())
    assert len({tuple(part) for part in tokens}) > 1, "the completions have seeds of their own"
    again = run_all(make_engine(model, draft_depth=3), fan_out(request, 4))
    assert list(tokens_of(again).values()) == tokens, "a seed fixes them at any depth"


@pytest.mark.parametrize("draft_depth", [0, 2])
def test_abort_at_any_step_frees_everything(model, prompts, draft_depth):
    for when in range(8):
        engine = make_engine(model, max_step_tokens=16, draft_depth=draft_depth)
        for index, prompt in enumerate(prompts[:4]):
            engine.add(Request(str(index), tuple(prompt), GREEDY))
        for _ in range(when):
            engine.step()
        for index in range(4):
            engine.abort(str(index))
            engine.check_blocks()
        ended = {output.request_id for output in engine.step()}
        assert ended == {"0", "1", "2", "3"}
        assert engine.stats().kv_blocks_used == 0
        assert not engine.has_work()


def test_logprobs_are_those_of_the_raw_logits(model, prompts):
    params = SamplingParams(
        max_tokens=6, temperature=0.5, seed=1, logprobs=3, presence_penalty=2.0, ignore_eos=True
    )
    outputs = run_all(make_engine(model, draft_depth=2), [Request("r", tuple(prompts[1]), params)])
    token_ids = list(prompts[1])
    for part in outputs["r"]:
        for token_id, got in zip(part.token_ids, part.logprobs, strict=True):
            hidden = model.forward_full(torch.tensor(token_ids))
            expected = model.logits(hidden[-1:])[0].log_softmax(-1)
            assert got.token_id == token_id
            assert got.logprob == pytest.approx(float(expected[token_id]), abs=1e-4)
            best = expected.topk(3)
            assert [token for token, _ in got.top] == best.indices.tolist()
            assert [v for _, v in got.top] == pytest.approx(best.values.tolist(), abs=1e-4)
            token_ids.append(token_id)
    assert len(token_ids) == len(prompts[1]) + 6


def test_an_fp8_cache_gives_nearly_the_same_distribution(folder, prompts):
    model = load_model(folder)
    params = SamplingParams(max_tokens=1, temperature=0, logprobs=0)
    logprobs = []
    for kv_dtype in ("bf16", "fp8"):
        requests = [Request(str(i), tuple(prompt), params) for i, prompt in enumerate(prompts)]
        outputs = run_all(make_engine(model, kv_dtype=kv_dtype), requests)
        logprobs.append([outputs[request.id][0].logprobs[0].logprob for request in requests])
    bf16, fp8 = np.array(logprobs)
    assert not np.array_equal(bf16, fp8), "the cache is really rounded"
    assert np.abs(bf16 - fp8).max() < 0.3


def test_scripted_text_survives_drafts_batches_and_an_fp8_cache(scripted):
    prompts = make_prompts(12, scripted.config.vocab_size)
    expected = complete(scripted, prompts, GREEDY, kv_dtype="bf16", draft_depth=0)
    for draft_depth, kv_dtype in product((1, 3), ("bf16", "fp8")):
        got = complete(scripted, prompts, GREEDY, kv_dtype=kv_dtype, draft_depth=draft_depth)
        assert got == expected


def test_acceptance_is_what_a_count_by_hand_says(scripted):
    """Drafts are recomputed here from whole sequences, step by step."""
    prompt, count, depth = [7, 8, 9], 60, 2
    params = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)
    engine = make_engine(scripted, kv_dtype="bf16", draft_depth=depth)
    outputs = run_all(engine, [Request("r", tuple(prompt), params)])
    token_ids = prompt + tokens_of(outputs)["r"]
    drafted, accepted = [0] * depth, [0] * depth
    known = len(prompt) + 1
    while known < len(token_ids):
        drafts = drafts_by_hand(scripted, token_ids[:known], min(depth, len(token_ids) - known - 1))
        hits = 0
        while hits < len(drafts) and drafts[hits] == token_ids[known + hits]:
            hits += 1
        for position in range(len(drafts)):
            drafted[position] += 1
            accepted[position] += position < hits
        known += hits + 1
    usage = outputs["r"][-1].usage
    assert usage.drafted == engine.stats().drafted == tuple(drafted)
    assert usage.accepted == engine.stats().accepted == tuple(accepted)
    assert 0 < accepted[1] < accepted[0] < drafted[0]


def drafts_by_hand(model, token_ids, depth):
    following = torch.tensor(token_ids[1:])
    hidden = model.forward_full(torch.tensor(token_ids[:-1]))
    drafts = []
    for _ in range(depth):
        state = model.draft_full(following, hidden)[-1:]
        drafts.append(int(model.logits(state).argmax()))
        following = torch.cat([following, torch.tensor(drafts[-1:])])
        hidden = torch.cat([hidden, state])
    return drafts


@pytest.mark.parametrize("draft_depth", [0, 3])
def test_sampled_triples_have_the_exact_distribution(scripted, draft_depth):
    """Four letters that follow each other in the script are the whole vocabulary, by bias."""
    tokenizer = make_tokenizer(TINY_SUFFIX)
    letters = tokenizer.encode("abcd").ids
    params = {"temperature": 7.0, "logit_bias": dict.fromkeys(letters, 100.0), "max_tokens": 3}
    prompt = tokenizer.encode("xyza").ids
    engine = make_engine(scripted, kv_dtype="bf16", draft_depth=draft_depth)
    requests = [
        Request(str(i), tuple(prompt), SamplingParams(seed=1000 * draft_depth + i, **params))
        for i in range(2000)
    ]
    triples = [tuple(tokens) for tokens in tokens_of(run_all(engine, requests)).values()]
    expected = {
        triple: triple_probability(scripted, prompt, triple, letters, params["temperature"])
        for triple in product(letters, repeat=3)
    }
    common = [triple for triple, p in expected.items() if p * len(triples) >= 5]
    observed = [triples.count(triple) for triple in common]
    wanted = [expected[triple] * len(triples) for triple in common]
    observed.append(len(triples) - sum(observed))
    wanted.append(len(triples) - sum(wanted))
    assert stats.chisquare(observed, wanted).pvalue > 1e-3
    assert len(common) > 10
    if draft_depth:
        assert 0 < engine.stats().accepted[0] < engine.stats().drafted[0]


def triple_probability(model, prompt, triple, letters, temperature):
    token_ids = [*prompt, *triple[:-1]]
    hidden = model.forward_full(torch.tensor(token_ids))
    logits = model.logits(hidden[-len(triple) :])[:, letters] / temperature
    probs = logits.double().softmax(-1)
    return float(np.prod([probs[i, letters.index(token)] for i, token in enumerate(triple)]))


def test_requests_that_can_never_run_are_refused(model, tmp_path):
    engine = make_engine(model, num_blocks=4, max_context=80)
    cases = [
        Request("a", (), GREEDY),
        Request("b", (1,) * 65, GREEDY),  # over the context
        Request("c", (1,) * 55, GREEDY),  # over the cache of 64
        Request("d", (model.config.vocab_size,), GREEDY),
        Request("e", (-1,), GREEDY),
        Request("f", (1,), SamplingParams(max_tokens=1, logit_bias={9999: 1.0})),
    ]
    for request in cases:
        with pytest.raises(InputError):
            engine.add(request)
    assert not engine.has_work()
    engine.add(Request("g", (1,), GREEDY))
    with pytest.raises(InputError, match="already"):
        engine.add(Request("g", (1,), GREEDY))


def test_the_context_is_bounded_by_the_models_positions(model):
    with pytest.raises(InputError, match="2048 positions"):
        make_engine(model, max_context=2049)


def test_drafts_need_an_mtp_layer(tmp_path):
    folder = make_random(tmp_path / "m", num_nextn_predict_layers=0, **SHALLOW)
    model = load_model(folder)
    with pytest.raises(InputError, match="MTP"):
        Engine(model, EngineConfig(num_blocks=4, max_context=64, draft_depth=1))
    assert complete(model, [[1, 2]], GREEDY, draft_depth=0, kv_dtype="bf16")

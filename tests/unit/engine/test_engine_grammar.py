"""Grammars: what they allow, how drafts roll back, and how a wrong one is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from hy3.engine.engine import Engine, EngineConfig
from hy3.engine.grammar import GrammarCompiler
from hy3.engine.request import GrammarSpec, Request, SamplingParams
from hy3.engine.sampler import choose_tokens
from hy3.errors import InputError
from support.cached_model import CachedModel
from support.chat_files import TINY_SUFFIX, make_tokenizer
from support.chunks import chunk, greedy

VOCAB = 320  # above the tokenizer's, as padding to a multiple of 64 makes it
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(TINY_SUFFIX)


@pytest.fixture(scope="module")
def eos(tokenizer):
    return tokenizer.token_to_id(f"<｜hy_eos{TINY_SUFFIX}｜>")


@pytest.fixture(scope="module")
def compiler(tokenizer, eos, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return GrammarCompiler(path, [eos], VOCAB)


def generate(compiler, eos, spec, tokenizer, seed, draft_depth=0, max_tokens=140):
    """Text of random, constrained tokens; its finish reason."""
    config = EngineConfig(num_blocks=16, max_context=160, draft_depth=draft_depth)
    engine = Engine(CachedModel(VOCAB, (eos,)), config, compiler)
    params = SamplingParams(max_tokens=max_tokens, seed=seed, grammar=spec)
    engine.add(Request("r", (1, seed), params))
    token_ids = []
    while engine.has_work():
        (output,) = engine.step()
        token_ids += output.token_ids
    return tokenizer.decode(token_ids), output.finish_reason


@pytest.mark.parametrize("seed", range(5))
def test_json_schema_output_is_valid_json_of_the_schema(compiler, eos, tokenizer, seed):
    spec = GrammarSpec("json_schema", json.dumps(SCHEMA))
    text, reason = generate(compiler, eos, spec, tokenizer, seed)
    value = json.loads(text)
    assert reason == "stop"
    assert set(value) == {"city", "days"}
    assert value["city"] in ("Rome", "Oslo") and value["days"] <= 9


@pytest.mark.parametrize("draft_depth", [1, 3])
def test_drafts_do_not_change_constrained_text(compiler, eos, tokenizer, draft_depth):
    spec = GrammarSpec("regex", "(ab|cd|[0-9]){1,12}")
    for seed in range(5):
        plain = generate(compiler, eos, spec, tokenizer, seed)
        assert generate(compiler, eos, spec, tokenizer, seed, draft_depth) == plain


def test_json_object_starts_with_a_brace_only(compiler, tokenizer):
    allowed = np.flatnonzero(compiler.compile(GrammarSpec("json_object")).mask())
    assert [tokenizer.id_to_token(int(token)) for token in allowed] == ["{"]


def test_lark_forces_markers_by_name(compiler, tokenizer):
    think, end = f"<think{TINY_SUFFIX}>", f"</think{TINY_SUFFIX}>"
    matcher = compiler.compile(GrammarSpec("lark", f"start: {think} /[a-b]+/ {end}"))
    assert np.flatnonzero(matcher.mask()).tolist() == [tokenizer.token_to_id(think)]
    letters = tokenizer.encode("ab").ids
    assert matcher.accept([tokenizer.token_to_id(think), *letters]) == 1 + len(letters)
    assert matcher.mask()[tokenizer.token_to_id(end)]
    matcher.accept([tokenizer.token_to_id(end)])
    assert matcher.complete


def test_rows_follow_the_drafts_and_the_matcher_comes_back(compiler, tokenizer):
    matcher = compiler.compile(GrammarSpec("regex", "abc"))
    a, b, c, x = (tokenizer.token_to_id(letter) for letter in "abcx")
    work = chunk(greedy(), vocab=VOCAB, drafts=[a, b], matcher=matcher)
    assert choose_tokens(torch.zeros(3, VOCAB), [work]) == [[a, b, c]]
    assert np.flatnonzero(matcher.mask()).tolist() == [a], "the drafts are rolled back"
    wrong = chunk(greedy(), vocab=VOCAB, drafts=[x, b], matcher=matcher)
    assert choose_tokens(torch.zeros(3, VOCAB), [wrong])[0][0] == a
    assert np.flatnonzero(matcher.mask()).tolist() == [a], "a refused draft leaves no trace"


def test_a_complete_grammar_leaves_the_end_token_even_before_min_tokens(compiler, tokenizer, eos):
    matcher = compiler.compile(GrammarSpec("regex", "a"))
    (a,) = tokenizer.encode("a").ids
    work = chunk(greedy(min_tokens=9), vocab=VOCAB, drafts=[a], stop_ids=[eos], matcher=matcher)
    assert choose_tokens(torch.zeros(2, VOCAB), [work]) == [[a, eos]]


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec("json_schema", "{"),
        GrammarSpec("json_schema", '{"type": "objct"}'),
        GrammarSpec("json_schema", '{"$ref": "#/nowhere"}'),
        GrammarSpec("lark", "start: foo("),
        GrammarSpec("lark", "start: <no_such_marker>"),
        GrammarSpec("regex", "(a"),
        GrammarSpec("json_schema", '{"$ref": "#"}'),
        GrammarSpec("json_schema", '{"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}'),
    ],
)
def test_a_wrong_grammar_is_an_input_error(compiler, spec):
    with pytest.raises(InputError) as caught:
        compiler.compile(spec)
    assert caught.value.where == spec.kind
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("draft_depth", [0, 2])
def test_a_grammar_that_leads_nowhere_is_no_regular_end(compiler, eos, tokenizer, draft_depth):
    endless = {"properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]}
    schema = {"type": "object", "additionalProperties": False, **endless}
    spec = GrammarSpec("json_schema", json.dumps(schema))
    text, reason = generate(compiler, eos, spec, tokenizer, 1, draft_depth)
    assert reason == "abort"
    assert "".join(text.split()).startswith('{"a":')


def test_the_engine_refuses_a_grammar_without_tokenizer():
    engine = Engine(CachedModel(), EngineConfig(num_blocks=4, max_context=32))
    params = SamplingParams(max_tokens=4, grammar=GrammarSpec("json_object"))
    with pytest.raises(InputError):
        engine.add(Request("r", (1,), params))
    assert not engine.has_work()

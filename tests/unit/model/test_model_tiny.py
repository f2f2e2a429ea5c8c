"""The trained hy3-tiny: parity with transformers on held-out text, and what BF16 costs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tokenizers import Tokenizer

from hy3.kernels import cpu
from hy3.model.decoder import Hy3Model, load_model
from support.batches import run_chunks
from support.tiny import TINY

LENGTH, BLOCK = 300, 16


@pytest.fixture(scope="module")
def passages():
    """Held-out text, in pieces of ``LENGTH`` tokens."""
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    text = (TINY / "heldout.txt").read_text(encoding="utf-8")
    ids = tokenizer.encode(text[: 16 * LENGTH]).ids
    return [ids[start : start + LENGTH] for start in range(0, 4 * LENGTH, LENGTH)]


@pytest.fixture(scope="module")
def tokens(passages):
    return passages[0]


@pytest.fixture(scope="module")
def exact(passages):
    """fp32 logits of each passage as a whole."""
    model = load_model(TINY, dtype=torch.float32)
    return [model.logits(model.forward_full(torch.tensor(passage))) for passage in passages]


@pytest.fixture
def torch_kernels(monkeypatch):
    """The twins take no row, so that everything is computed by the oracles."""
    monkeypatch.setattr(cpu, "MAX_ROWS", 0)


def transformers_logits(tokens, dtype):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.AutoConfig.from_pretrained(TINY)
    config.enable_moe_fp32_combine = False
    model = transformers.HYV3ForCausalLM.from_pretrained(
        TINY, config=config, dtype=dtype, experts_implementation="eager"
    )
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].float()


def decoded(model, tokens, prompt):
    """Logits of a prompt, then of one token at a time through the cache."""
    pool = model.new_pool(-(-LENGTH // BLOCK), BLOCK)
    table = list(range(pool.num_blocks))
    return model.logits(run_chunks(model, pool, tokens, range(prompt, LENGTH), table))


def test_fp32_equals_transformers_whole_and_decoded(tokens, exact):
    expected = transformers_logits(tokens, torch.float32)
    bound = 1e-5 * expected.abs().max()
    assert (exact[0] - expected).abs().max() <= bound
    model = load_model(TINY, dtype=torch.float32)
    assert (decoded(model, tokens, LENGTH - 20) - expected).abs().max() <= bound


def test_bf16_equals_transformers(tokens, torch_kernels):
    expected = transformers_logits(tokens, torch.bfloat16)
    model = load_model(TINY)
    narrow = Hy3Model(dataclasses.replace(model.config, lm_head_fp32=False), model.weights)
    logits = narrow.logits(narrow.forward_full(torch.tensor(tokens)))
    assert (logits - expected).abs().max() <= 2 * 2**-8 * expected.abs().max()


def test_decoding_kernels_are_as_close_to_fp32_as_torch_is(passages, exact, monkeypatch):
    """The two part at router near-ties; over some text, neither is nearer to the truth."""
    model = load_model(TINY)
    steps = [decoded(model, passage, 32) for passage in passages]
    monkeypatch.setattr(cpu, "MAX_ROWS", 0)
    whole = [model.logits(model.forward_full(torch.tensor(passage))) for passage in passages]
    steps, whole, truth = (torch.cat(logits) for logits in (steps, whole, exact))
    assert not torch.equal(steps, whole)
    # The median: a flipped expert moves a whole row, and whose rows flip is chance.
    assert (steps - truth).abs().median() <= 1.1 * (whole - truth).abs().median()
    assert (steps.argmax(-1) == truth.argmax(-1)).float().mean() >= 0.97

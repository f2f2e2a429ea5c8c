"""The forward pass against transformers' HYV3ForCausalLM on random checkpoints."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hy3.model.decoder import Hy3Model, load_model
from support.scripted import make_random

SHAPES = {
    "small": {},
    "wide_groups": {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 16},
    "two_dense_two_shared": {
        "first_k_dense_replace": 2,
        "num_shared_experts": 2,
        "num_experts_per_tok": 3,
        "router_scaling_factor": 1.5,
    },
}
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8]


@pytest.fixture(scope="module", params=list(SHAPES))
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    return make_random(path, seed=7, **SHAPES[request.param])


def reference_logits(folder, dtype):
    """[tokens, vocab] fp32, from transformers reading the same files."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.AutoConfig.from_pretrained(folder)
    config.enable_moe_fp32_combine = False
    dense = config.first_k_dense_replace  # transformers does not read this key
    config.mlp_layer_types = ["dense"] * dense + ["sparse"] * (config.num_hidden_layers - dense)
    # The plain loop over experts adds their outputs in the model dtype, as the model defines it.
    model = transformers.HYV3ForCausalLM.from_pretrained(
        folder, config=config, dtype=dtype, experts_implementation="eager"
    )
    with torch.inference_mode():
        return model(torch.tensor([TOKENS])).logits[0].float()


def with_narrow_head(model: Hy3Model) -> Hy3Model:
    return Hy3Model(dataclasses.replace(model.config, lm_head_fp32=False), model.weights)


def test_fp32_equals_transformers(folder):
    expected = reference_logits(folder, torch.float32)
    model = load_model(folder, dtype=torch.float32)
    logits = model.logits(model.forward_full(torch.tensor(TOKENS)))
    assert logits.dtype == torch.float32
    assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_bf16_equals_transformers(folder):
    expected = reference_logits(folder, torch.bfloat16)
    model = with_narrow_head(load_model(folder))
    logits = model.logits(model.forward_full(torch.tensor(TOKENS)))
    assert (logits - expected).abs().max() <= 2 * 2**-8 * expected.abs().max()

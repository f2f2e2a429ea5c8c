"""Every form is loaded as what its twin holds: the same weights, states, drafts and logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hy3.model.decoder import load_model
from hy3.quantize.dequantize import dequantize
from hy3.quantize.pipeline import quantize
from hy3.quantize.plan import plan_source, plan_twin
from hy3.quantize.recipe import load_recipe
from hy3.quantize.source import local_source
from support.quantizing import no_progress
from support.recipes import VARIANTS
from support.tiny import TINY

TOKENS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])


@pytest.mark.parametrize("variant", ["attn-fp8", "fp8+head", "all-nvfp4+modelopt"])
def test_logits_are_those_of_the_twin(variant: str, tmp_path: Path) -> None:
    name, activations, head, layout = VARIANTS[variant]
    recipe = load_recipe(name).with_options(activations, head)
    quantize(
        plan_source(local_source(TINY), recipe, "max", "same", layout),
        tmp_path / "q",
        2,
        no_progress,
    )
    dequantize(plan_twin(tmp_path / "q"), tmp_path / "twin", 2, no_progress)
    ours, twin, source = (
        load_model(folder) for folder in (tmp_path / "q", tmp_path / "twin", TINY)
    )
    states = ours.forward_full(TOKENS)
    assert torch.equal(states, twin.forward_full(TOKENS))
    assert torch.equal(ours.logits(states), twin.logits(states))
    drafts = ours.draft_full(TOKENS[1:], states[:-1])
    assert torch.equal(drafts, twin.draft_full(TOKENS[1:], states[:-1]))
    assert not torch.equal(states, source.forward_full(TOKENS))
    assert torch.cosine_similarity(states.float(), source.forward_full(TOKENS).float()).min() > 0.9

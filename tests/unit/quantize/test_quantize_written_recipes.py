"""Every recipe in every layout, from hy3-tiny: proved, and read alike by a foreign decoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hy3.checkpoint.census import take_census
from hy3.checkpoint.forms import BF16, FP8_FORMS, MODELOPT_NVFP4
from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.index import open_checkpoint
from hy3.checkpoint.model_config import load_config
from hy3.checkpoint.names import fused_with, module_of
from hy3.checkpoint.reader import TensorReader
from hy3.nvfp4.codec import decode_e2m1, decode_e4m3, unpack_codes
from hy3.quantize.dequantize import dequantize
from hy3.quantize.pipeline import quantize
from hy3.quantize.plan import plan_source, plan_twin
from hy3.quantize.recipe import load_recipe
from hy3.quantize.source import local_source
from hy3.quantize.verify import verify
from hy3.stored.decode import decode
from hy3.stored.weight import StoredWeight
from support.foreign_decoder import decode as decode_nvfp4
from support.foreign_decoder import decode_fp8
from support.quantizing import no_progress
from support.recipes import VARIANTS
from support.tiny import TINY
from support.weight_files import load_shards

# The head alone makes no difference to the others.
WRITTEN = [name for name in VARIANTS if name not in ("experts-nvfp4+head", "attn-fp8+head")]
LAYER = "model.layers.2."


@pytest.fixture(scope="module", params=WRITTEN)
def written(request, tmp_path_factory) -> Path:
    name, activations, head, layout = VARIANTS[request.param]
    recipe = load_recipe(name).with_options(activations, head)
    out = tmp_path_factory.mktemp("written") / "out"
    quantize(plan_source(local_source(TINY), recipe, "exact", "same", layout), out, 2, no_progress)
    return out


def foreign(tensors: dict[str, torch.Tensor], weight: StoredWeight) -> torch.Tensor:
    """BF16 as compressed-tensors decodes it, or by the arithmetic that ModelOpt documents."""
    codes, scales, *last = (tensors[name] for name in weight.names)
    if weight.form in FP8_FORMS:
        fp8 = decode_fp8(codes.view(torch.uint8), scales, block=weight.form == "fp8-block")
        return fp8.bfloat16()
    scales = scales.view(torch.uint8)
    if weight.form == MODELOPT_NVFP4:
        values = decode_e2m1(unpack_codes(codes)).unflatten(-1, (-1, 16))
        steps = decode_e4m3(scales).unsqueeze(-1) * last[0]
        return (values * steps).flatten(-2).bfloat16()
    return decode_nvfp4(codes, scales, float(last[0]))


def test_it_is_proved_and_read_alike_by_others(written: Path) -> None:
    verdict = verify(written, TINY)
    assert verdict.ok and {check.status for check in verdict.checks} == {"pass"}, [
        vars(check) for check in verdict.checks if check.status != "pass"
    ]
    checkpoint = open_checkpoint(written)
    census = take_census(checkpoint, load_config(written))
    tensors, source, read = load_shards(written), load_shards(TINY), set()
    with TensorReader(checkpoint) as reader:
        for name, form in census.forms.items():
            if form == BF16 or (".experts." in name and LAYER + "mlp.experts.3." not in name):
                continue
            read.add(form)
            weight = StoredWeight(TensorSpec(name, BF16, tuple(source[name].shape)), form)
            bits, _ = decode(reader, weight)
            ours = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
            assert torch.equal(ours, foreign(tensors, weight)), name
            error = (ours.double() - source[name].double()).square().sum()
            assert error / source[name].double().square().sum() < 0.012, name
            shared = {float(tensors[other].item()) for other in shared_scales(name, weight)}
            assert len(shared) <= 1, name
    assert read == set(census.forms.values()) - {BF16} != set()


def shared_scales(name: str, weight: StoredWeight) -> list[str]:
    """The tensor scales of what engines fuse with an NVFP4 weight."""
    if len(weight.names) < 3:
        return []
    suffix = weight.names[2].rpartition(".")[2]
    return [f"{module_of(each)}.{suffix}" for each in (name, *fused_with(name))]


def test_the_twin_has_its_weights(written: Path, tmp_path: Path) -> None:
    plan = plan_twin(written)
    twin = dequantize(plan, tmp_path / "twin", 2, no_progress)
    forms = set(take_census(open_checkpoint(written), load_config(written)).forms.values())
    # Only FP8 has products that BF16 must round.
    assert (twin.rounded_values > 0) == bool(forms & set(FP8_FORMS))
    tensors = load_shards(tmp_path / "twin")
    assert {name: each.shape for name, each in tensors.items()} == {
        name: each.shape for name, each in load_shards(TINY).items()
    }
    checkpoint = open_checkpoint(written)
    name = f"{LAYER}mlp.experts.3.down_proj.weight"
    form = take_census(checkpoint, load_config(written)).forms[name]
    weight = StoredWeight(TensorSpec(name, BF16, tuple(tensors[name].shape)), form)
    assert torch.equal(tensors[name], foreign(load_shards(written), weight))

"""What vLLM itself makes of every quantization_config that is written, module by module.

`make test-peers` runs it in an environment that has vLLM.
"""

from __future__ import annotations

import copy

import pytest

from hy3.checkpoint.engine_rules import FUSED_SHARDS, engine_module, vllm_modules
from hy3.checkpoint.forms import BF16, FP8, FP8_BLOCK, NVFP4
from hy3.checkpoint.model_config import parse_config
from hy3.checkpoint.names import module_of
from support.real_models import HY3, HY_MT2
from support.recipes import VARIANTS, assigned, linears, written_config

pytest.importorskip("vllm", reason="vLLM is not installed: make test-peers")

FUSED = {fused: list(shards) for fused, shards in FUSED_SHARDS.items()}
MODELOPT = [name for name, each in VARIANTS.items() if each[3] == "modelopt"]
COMPRESSED = [name for name in VARIANTS if name not in MODELOPT]


class Linear:
    """Stands for a module: rules look at its class' name only."""


def modules(raw: dict, variant: str, mtp: str) -> list[tuple[str, str]]:
    """Each of vLLM's prefixes of every linear, and the form it is stored in."""
    config = parse_config(raw)
    forms = assigned(config, variant, mtp).forms
    found = [
        (prefix, forms[name])
        for name in linears(config)
        for prefix in vllm_modules(engine_module(module_of(name)))
    ]
    assert len(found) > config.num_layers
    return found


@pytest.mark.parametrize("variant", COMPRESSED)
@pytest.mark.parametrize("mtp", ["same", "bf16"])
def test_compressed_tensors(variant: str, mtp: str) -> None:
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsConfig,
    )

    for raw in (HY3, HY_MT2):
        value = written_config(parse_config(raw), variant, mtp)
        theirs = CompressedTensorsConfig.from_config(copy.deepcopy(value))
        theirs.packed_modules_mapping = FUSED
        for prefix, form in modules(raw, variant, mtp):
            scheme = theirs.get_scheme_dict(Linear(), prefix)
            assert form_of(theirs, scheme) == form, prefix
        # The head of the MTP layer is built under an empty name and must stay as it is.
        assert theirs.get_scheme_dict(Linear(), "") is None


def form_of(theirs, scheme: dict | None) -> str:
    if scheme is None:
        return BF16
    weights, activations = scheme["weights"], scheme["input_activations"]
    if theirs._is_nvfp4_format(weights):
        return NVFP4 if activations is None else "w4a4"
    assert scheme["format"] == "float-quantized" and theirs._is_fp8_w8a16(weights, None)
    if activations is None:
        return FP8 if weights.strategy == "channel" else "w8a16"
    assert theirs._is_fp8_w8a8(weights, activations) and weights.block_structure == [128, 128]
    return FP8_BLOCK


@pytest.mark.parametrize("variant", MODELOPT)
@pytest.mark.parametrize("mtp", ["same", "bf16"])
def test_modelopt(variant: str, mtp: str) -> None:
    from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config

    for raw in (HY3, HY_MT2):
        value = written_config(parse_config(raw), variant, mtp)
        assert ModelOptNvFp4Config.override_quantization_method(value, None) == "modelopt_fp4"
        theirs = ModelOptNvFp4Config.from_config(copy.deepcopy(value))
        theirs.packed_modules_mapping = FUSED
        assert (theirs.quant_method, theirs.group_size) == ("W4A16_NVFP4", 16)
        for prefix, form in modules(raw, variant, mtp):
            # vLLM asks about all experts of a layer at once.
            prefix = prefix.partition(".0.")[0] if ".experts." in prefix else prefix
            assert theirs.is_layer_excluded(prefix) == (form == BF16), prefix

"""What is written means the weights' forms to both engines, for every recipe and layout."""

from __future__ import annotations

import copy
import json

import pytest
from compressed_tensors.quantization import QuantizationConfig as PeerConfig

from hy3.checkpoint.forms import BF16, MODELOPT_NVFP4, NVFP4
from hy3.checkpoint.model_config import Hy3Config, parse_config
from hy3.checkpoint.scheme_writer import modelopt_file, quantization_config
from hy3.quantize.assignment import assign
from hy3.quantize.recipe import parse_recipe
from support.real_models import HY3, HY_MT2
from support.recipes import VARIANTS, assigned, engine_verdicts, linears, written_config

SMALL = parse_config({**HY3, "num_hidden_layers": 5, "num_experts": 4, "num_experts_per_tok": 2})


def check_meaning(config: Hy3Config, forms: dict[str, str], layout: str) -> dict:
    """Under every name that an engine has for it, each linear is what it is stored as."""
    value = quantization_config(config, forms, layout)
    verdicts = engine_verdicts(config, value)
    names = linears(config)
    assert names
    for name in names:
        form = {BF16: None, MODELOPT_NVFP4: NVFP4}.get(forms[name], forms[name])
        assert set(verdicts[name]) == {form}, (name, verdicts[name], form)
    return value


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mtp", ["same", "bf16"])
def test_every_variant(variant: str, mtp: str) -> None:
    for raw in (HY3, HY_MT2):
        config = parse_config(raw)
        assignment = assigned(config, variant, mtp)
        check_meaning(config, assignment.forms, assignment.layout)


CUSTOM = {
    "one layer's experts stay": (r"model\.layers\.3\.mlp\.experts\..*", "copy"),
    "attention of the MTP layer stays": (r"model\.layers\.5\.self_attn\..*_proj", "copy"),
    "the shared expert is not as the dense layer": (r".*\.shared_mlp\..*", "copy"),
    "o_proj is not as q, k, v": (r".*\.o_proj", "copy"),
    "some down projections are not as gate and up": (
        r"model\.layers\.[0-2]\.mlp(\.shared_mlp)?\.down_proj",
        "copy",
    ),
    "one layer of the trunk alone": (r"(?!model\.layers\.2\.mlp\.experts\.).*", "copy"),
    "FP8 in one layer": (r"model\.layers\.4\.self_attn\..*_proj", "fp8"),
    "FP8 blocks in the MTP layer": (r"model\.layers\.5\.self_attn\..*_proj", "fp8-block"),
}


@pytest.mark.parametrize("case", CUSTOM)
@pytest.mark.parametrize("layout", ["compressed-tensors", "modelopt"])
def test_recipes_that_tell_layers_apart(case: str, layout: str) -> None:
    pattern, form = CUSTOM[case]
    if form != "copy" and layout == "modelopt":
        pytest.skip("this layout cannot say it")
    rules = f"[[rules]]\nmatch = '{pattern}'\nformat = '{form}'\n"
    for kind in ("routed_expert", "shared_expert", "dense_mlp", "attention"):
        rules += f"[[rules]]\nclass = '{kind}'\nformat = 'nvfp4'\n"
    recipe = parse_recipe("custom", rules + "[[rules]]\nclass = '*'\nformat = 'copy'\n")
    assignment = assign(SMALL, recipe, "same", layout)
    value = check_meaning(SMALL, assignment.forms, layout)
    if layout == "compressed-tensors":
        PeerConfig.model_validate(copy.deepcopy(value))


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "modelopt" not in name])
def test_compressed_tensors_accepts_what_is_written(variant: str) -> None:
    value = written_config(parse_config(HY3), variant)
    peer = PeerConfig.model_validate(copy.deepcopy(value))
    assert peer.format == value["format"] and peer.ignore == value["ignore"]
    assert peer.config_groups.keys() == value["config_groups"].keys() != set()
    for name, group in value["config_groups"].items():
        weights = peer.config_groups[name].weights
        assert weights.num_bits == (4 if group["format"] == "nvfp4-pack-quantized" else 8)
        assert peer.config_groups[name].format == group["format"]
    assert "scale_dtype" not in json.dumps(value)


def test_formats_and_groups() -> None:
    config = parse_config(HY3)
    single = written_config(config, "all-nvfp4")
    assert single["format"] == "nvfp4-pack-quantized" and list(single["config_groups"]) == [
        "group_0"
    ]
    mixed = written_config(config, "attn-fp8+dynamic")
    assert mixed["format"] == "mixed-precision"
    experts, others = mixed["config_groups"].values()
    assert experts["input_activations"] is None
    assert others["weights"]["block_structure"] == [128, 128]
    assert others["input_activations"]["dynamic"] is True
    weight_only = written_config(config, "attn-fp8")["config_groups"]["group_1"]
    assert weight_only["input_activations"] is None
    assert weight_only["weights"]["strategy"] == "channel"
    head = written_config(config, "fp8+head")
    assert head["config_groups"]["group_0"]["targets"] == ["re:.*lm_head$"]
    assert "lm_head" not in head["ignore"]


def test_modelopts_own_file_says_the_same() -> None:
    value = written_config(parse_config(HY3), "all-nvfp4+modelopt", "bf16")
    assert value["quant_algo"] == "W4A16_NVFP4" and "config_groups" not in value
    quantization = modelopt_file(value)["quantization"]
    assert quantization["exclude_modules"] == value["ignore"]
    assert (quantization["quant_algo"], quantization["group_size"]) == ("W4A16_NVFP4", 16)
    # vLLM refuses a file of this kind without the key.
    assert quantization["kv_cache_quant_algo"] is None


def test_the_mtp_layer_is_named_by_the_number_of_layers() -> None:
    ignore = written_config(SMALL, mtp="bf16")["ignore"]
    assert r"re:.*layers\.5\..*" in ignore and r"re:.*decoder\..*" in ignore
    assert written_config(parse_config(HY_MT2), mtp="bf16") == written_config(parse_config(HY3))

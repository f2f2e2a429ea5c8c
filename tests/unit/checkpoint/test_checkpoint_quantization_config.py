"""Reading both formats, and the written config judged by both engines' rules."""

from __future__ import annotations

import copy
import json

import pytest
from compressed_tensors.quantization import QuantizationConfig as PeerConfig

from hy3.checkpoint.engine_rules import RuleConflict, engine_module, sglang_module
from hy3.checkpoint.model_config import parse_config
from hy3.checkpoint.names import expected_tensors, is_mtp, is_routed_expert, module_of
from hy3.checkpoint.quantization_config import nvfp4_experts_config, parse_quantization_config
from hy3.errors import InputError
from support.real_models import HY3, HY_MT2

CONFIG = parse_config(HY3)
# Every linear of three layers that stand for all: dense, routed and MTP, and the head.
LINEARS = [
    name
    for name, spec in expected_tensors(CONFIG).items()
    if len(spec.shape) == 2
    and name.startswith(("model.layers.0.", "model.layers.3.", "model.layers.80.", "lm_head"))
]


def judge(value: dict) -> dict[str, tuple]:
    """Weight name -> what vLLM and SGLang make of its module."""
    parsed = parse_quantization_config({"quantization_config": value})
    verdicts = {}
    for name in LINEARS:
        module = engine_module(module_of(name))
        verdict = []
        for ask, prefix in (
            (parsed.vllm_scheme, module),
            (parsed.sglang_scheme, sglang_module(module, CONFIG)),
        ):
            try:
                verdict.append(ask(prefix))
            except RuleConflict:
                verdict.append("conflict")
        verdicts[name] = tuple(verdict)
    return verdicts


@pytest.mark.parametrize("targets", [None, ["Linear"]])
@pytest.mark.parametrize("quantize_mtp", [True, False])
def test_written_config_means_the_same_to_both_engines(targets, quantize_mtp):
    value = nvfp4_experts_config(CONFIG, quantize_mtp)
    if targets:
        value["config_groups"]["group_0"]["targets"] = targets
    for name, verdict in judge(value).items():
        packed = is_routed_expert(name) and (quantize_mtp or not is_mtp(name, CONFIG))
        assert verdict == (("nvfp4", "nvfp4") if packed else (None, None)), name


DENSE = r"re:.*mlp\.(gate|up|down|gate_up)_proj$"  # covers the shared expert too
PLANTED = [  # what is dropped from ignore, a weight, verdicts with regex targets, with "Linear"
    ("re:.*self_attn.*", "layers.3.self_attn.o_proj", (None, "conflict"), ("nvfp4", "nvfp4")),
    (DENSE, "layers.0.mlp.down_proj", (None, "conflict"), ("nvfp4", "nvfp4")),
    ("re:.*shared_mlp.*", "layers.3.mlp.shared_mlp.up_proj", (None, None), (None, None)),  # twice
    (r"re:.*mlp\.gate$", "layers.3.mlp.router.gate", (None, "conflict"), ("nvfp4", "nvfp4")),
    ("re:.*eh_proj.*", "layers.80.eh_proj", (None, "conflict"), ("nvfp4", "nvfp4")),
    ("lm_head", "lm_head", (None, "conflict"), (None, "conflict")),
]


@pytest.mark.parametrize(("dropped", "part", "with_regex", "with_class"), PLANTED)
def test_planted_gaps_are_seen(dropped, part, with_regex, with_class):
    value = nvfp4_experts_config(CONFIG)
    value["ignore"].remove(dropped)
    name = next(name for name in LINEARS if part in name)
    assert judge(value)[name] == with_regex
    value["config_groups"]["group_0"]["targets"] = ["Linear"]
    assert judge(value)[name] == with_class


def test_planted_shard_names_without_fused_ones():
    value = nvfp4_experts_config(CONFIG)
    value["ignore"][1] = r"re:.*self_attn\.[qkvo]_proj$"
    assert judge(value)["model.layers.3.self_attn.q_proj.weight"] == (None, "conflict")
    value["ignore"][1] = r"re:.*self_attn\.[qko]_proj$"
    assert judge(value)["model.layers.3.self_attn.q_proj.weight"] == ("conflict", "conflict")


def test_planted_anchors_and_mtp_prefixes():
    value = nvfp4_experts_config(CONFIG)
    value["ignore"][1] = r"re:model\.layers\.\d+\.self_attn.*"
    verdicts = judge(value)
    assert verdicts["model.layers.3.self_attn.o_proj.weight"] == (None, "conflict")
    value = nvfp4_experts_config(CONFIG, quantize_mtp=False)
    value["ignore"].remove("re:.*decoder\\.mlp\\.experts.*")
    mtp_expert = "model.layers.80.mlp.experts.0.up_proj.weight"
    assert judge(value)[mtp_expert] == (None, "nvfp4")


def test_the_mtp_layer_is_named_by_the_number_of_layers():
    ignore = nvfp4_experts_config(parse_config({**HY3, "num_hidden_layers": 5}), False)["ignore"]
    assert r"re:.*layers\.5\..*" in ignore
    assert nvfp4_experts_config(parse_config(HY_MT2), False) == nvfp4_experts_config(CONFIG)


def test_compressed_tensors_accepts_what_is_written():
    value = nvfp4_experts_config(CONFIG)
    peer = PeerConfig.model_validate(copy.deepcopy(value))
    weights = peer.config_groups["group_0"].weights
    assert (weights.num_bits, weights.group_size) == (4, 16)
    assert weights.strategy == "tensor_group"
    assert peer.format == "nvfp4-pack-quantized" and peer.ignore == value["ignore"]
    assert "scale_dtype" not in json.dumps(value)


def parse(value: object):
    return parse_quantization_config({"quantization_config": value})


def test_no_config():
    assert parse_quantization_config({}) is None and parse(None) is None


def test_schemes_and_kv_cache():
    value = nvfp4_experts_config(CONFIG)
    group = value["config_groups"]["group_0"]
    assert parse(value).groups[0].weight_only and not parse(value).kv_cache_fp8
    group["input_activations"] = {"num_bits": 4}
    value["kv_cache_scheme"] = {"num_bits": 8}
    assert not parse(value).groups[0].weight_only and parse(value).kv_cache_fp8
    group["weights"] = {"num_bits": 8, "type": "float", "strategy": "channel"}
    assert parse(value).groups[0].scheme == "fp8"
    group["weights"] = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
    assert parse(value).groups[0].scheme == "other"


def test_modelopt_flat_and_nested():
    flat = parse({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]})
    assert (flat.groups[0].scheme, flat.ignore) == ("nvfp4", ("lm_head",))
    nested = {"quant_algo": "W4A16_NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["x*"]}
    parsed = parse({"quant_method": "modelopt", "quantization": nested})
    assert parsed.groups[0].weight_only and parsed.kv_cache_fp8 and parsed.ignore == ("x*",)
    assert flat.vllm_scheme("lm_head") is None and flat.vllm_scheme("a.b.o_proj") == "nvfp4"
    assert flat.sglang_scheme(".lm_head") is None and flat.sglang_scheme(".a.o_proj") == "nvfp4"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "is not an object"),
        ({}, "quant_method None is unknown"),
        ({"quant_method": "awq"}, "'awq' is unknown"),
        ({"quant_method": "compressed-tensors"}, "config_groups is not an object"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {}}}, "g has no weights"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {}}}},
            "g.targets is not a list of strings",
        ),
        ({"quant_method": "modelopt", "ignore": [1]}, "ignore is not a list of strings"),
        ({"quant_method": "modelopt", "ignore": ["re:("]}, "bad pattern '\\('"),
    ],
)
def test_bad_configs(value, message):
    with pytest.raises(InputError, match=message):
        parse(value)

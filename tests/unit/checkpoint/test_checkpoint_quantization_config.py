"""Reading both formats, and gaps planted into what is written, seen by both engines' rules."""

from __future__ import annotations

import pytest

from hy3.checkpoint.model_config import parse_config
from hy3.checkpoint.quantization_config import parse_quantization_config
from hy3.errors import InputError
from support.real_models import HY3
from support.recipes import engine_verdicts, linears, written_config

CONFIG = parse_config(HY3)


def written(mtp: str = "same") -> dict:
    return written_config(CONFIG, "experts-nvfp4", mtp)


def judge(value: dict) -> dict[str, tuple]:
    return engine_verdicts(CONFIG, value)


ATTENTION = r"re:.*self_attn\.(qkv_proj|q_proj|k_proj|v_proj)$"
OUT = r"re:.*self_attn\.o_proj$"
DOWN = r"re:.*(mlp|mlp\.shared_mlp)\.down_proj$"
# what is dropped from ignore, a weight, verdicts with regex targets, with "Linear"
PLANTED = [
    (OUT, "layers.3.self_attn.o_proj", (None, "conflict"), ("nvfp4", "nvfp4")),
    (DOWN, "layers.0.mlp.down_proj", (None, "conflict"), ("nvfp4", "nvfp4")),
    (DOWN, "3.mlp.shared_mlp.down_proj", (None, None, "conflict"), ("nvfp4", "nvfp4", "nvfp4")),
    (r"re:.*mlp\.gate$", "layers.3.mlp.router.gate", (None, "conflict"), ("nvfp4", "nvfp4")),
    ("re:.*eh_proj.*", "layers.80.eh_proj", (None, "conflict"), ("nvfp4", "nvfp4")),
    ("lm_head", "lm_head", (None, "conflict"), (None, "conflict")),
]


@pytest.mark.parametrize(("dropped", "part", "with_regex", "with_class"), PLANTED)
def test_planted_gaps_are_seen(dropped, part, with_regex, with_class):
    value = written()
    value["ignore"].remove(dropped)
    name = next(name for name in linears(CONFIG) if part in name)
    assert judge(value)[name] == with_regex
    value["config_groups"]["group_0"]["targets"] = ["Linear"]
    assert judge(value)[name] == with_class


def test_planted_shard_names_without_fused_ones():
    value = written()
    place = value["ignore"].index(ATTENTION)
    value["ignore"][place] = r"re:.*self_attn\.[qkvo]_proj$"
    assert judge(value)["model.layers.3.self_attn.q_proj.weight"] == (None, "conflict")
    value["ignore"][place] = r"re:.*self_attn\.[qko]_proj$"
    assert judge(value)["model.layers.3.self_attn.q_proj.weight"] == ("conflict", "conflict")


def test_planted_anchors_and_mtp_prefixes():
    value = written()
    value["ignore"][value["ignore"].index(OUT)] = r"re:model\.layers\.\d+\.self_attn.*"
    verdicts = judge(value)
    assert verdicts["model.layers.3.self_attn.o_proj.weight"] == (None, "conflict")
    value = written(mtp="bf16")
    value["ignore"].remove(r"re:.*decoder\..*")
    mtp_expert = "model.layers.80.mlp.experts.0.up_proj.weight"
    assert judge(value)[mtp_expert] == (None, "nvfp4")


def parse(value: object):
    return parse_quantization_config({"quantization_config": value})


def test_no_config():
    assert parse_quantization_config({}) is None and parse(None) is None


def test_schemes_and_kv_cache():
    value = written()
    group = value["config_groups"]["group_0"]
    assert parse(value).groups[0].weight_only and not parse(value).kv_cache_fp8
    group["input_activations"] = {"num_bits": 4}
    value["kv_cache_scheme"] = {"num_bits": 8}
    assert not parse(value).groups[0].weight_only and parse(value).kv_cache_fp8
    group["weights"] = {"num_bits": 8, "type": "float", "strategy": "channel"}
    assert parse(value).groups[0].scheme == "fp8"
    group["weights"]["strategy"] = "block"
    assert parse(value).groups[0].scheme == "fp8-block"
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

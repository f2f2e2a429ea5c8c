"""The matching rules of vLLM and SGLang, rule by rule."""

from __future__ import annotations

import pytest

from hy3.checkpoint.engine_rules import (
    RuleConflict,
    engine_module,
    sglang_excludes,
    sglang_ignores,
    sglang_module,
    sglang_target,
    vllm_excludes,
    vllm_ignores,
    vllm_target,
)
from hy3.checkpoint.model_config import parse_config
from support.real_models import HY3

LAYER = "model.layers.3"
QKV = f"{LAYER}.self_attn.qkv_proj"
EXPERT = f"{LAYER}.mlp.experts.0.gate_proj"


@pytest.mark.parametrize(
    ("module", "engine", "sglang"),
    [
        (f"{LAYER}.self_attn.k_proj", QKV, f".{QKV}"),
        (f"{LAYER}.self_attn.o_proj", f"{LAYER}.self_attn.o_proj", f".{LAYER}.self_attn.o_proj"),
        (f"{LAYER}.mlp.up_proj", f"{LAYER}.mlp.gate_up_proj", f".{LAYER}.mlp.gate_up_proj"),
        (f"{LAYER}.mlp.experts.77.gate_proj", EXPERT, f".{EXPERT}"),
        (f"{LAYER}.mlp.router.gate", f"{LAYER}.mlp.gate", f".{LAYER}.mlp.gate"),
        ("lm_head", "lm_head", ".lm_head"),
        ("model.layers.80.eh_proj", "model.layers.80.eh_proj", "model.eh_proj"),
        (
            "model.layers.80.mlp.experts.1.down_proj",
            "model.layers.80.mlp.experts.0.down_proj",
            "model.decoder.mlp.experts.0.down_proj",
        ),
    ],
)
def test_names_of_modules(module, engine, sglang):
    assert engine_module(module) == engine
    assert sglang_module(engine, parse_config(HY3)) == sglang


@pytest.mark.parametrize(
    ("ignore", "ignored"),
    [
        (["re:.*self_attn.*"], True),
        (["re:self_attn"], False),  # anchored at the start
        (["re:model.layers"], True),  # not anchored at the end
        ([QKV], True),
        (["qkv_proj"], False),  # a plain string is the whole name
        ([f"{LAYER}.self_attn.{shard}_proj" for shard in "qkv"], True),
        ([], False),
    ],
)
def test_vllm_ignores(ignore, ignored):
    assert vllm_ignores(QKV, ignore) is ignored


def test_vllm_refuses_half_ignored_fused_modules():
    with pytest.raises(RuleConflict, match="some but not all shards"):
        vllm_ignores(QKV, [r"re:.*[qk]_proj$"])


@pytest.mark.parametrize(
    ("prefix", "targets", "found"),
    [
        (EXPERT, [r"re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$"], 0),
        (EXPERT, ["Linear"], 0),
        (EXPERT, ["re:.*self_attn.*"], None),
        (QKV, ["Linear"], 0),  # contained in QKVParallelLinear
        (QKV, ["re:.*[qkv]_proj$"], 0),
        (QKV, ["re:.*q_proj$", "re:.*k_proj$"], None),  # v is not covered
        (QKV, [r"re:.*\.q_proj$", r"re:.*\.k_proj$", r"re:.*\.v_proj$"], 0),
        (QKV, ["re:.*q_proj$", "re:.*v_proj$"], 1),  # "v_proj" ends the fused name itself
        (QKV, ["RMSNorm", "qkvparallel"], 1),
        ("lm_head", ["Linear"], None),
        ("model.layers.80.eh_proj", ["Linear"], 0),
    ],
)
def test_vllm_target(prefix, targets, found):
    assert vllm_target(prefix, targets) == (None if found is None else targets[found])


@pytest.mark.parametrize(
    ("prefix", "ignore", "ignored"),
    [
        (f".{QKV}", ["re:.*self_attn.*"], True),
        (f".{QKV}", ["re:model.*self_attn.*"], False),  # the prefix begins with a dot
        (f".{QKV}", [f"re:.*{shard}_proj" for shard in "qkv"], True),  # "v_proj" ends qkv_proj
        (f".{QKV}", ["re:.*self_attn\\.[qkv]_proj"], False),  # shard names are not fused names
        (".lm_head", ["lm_head"], True),
        (".model.layers.30.mlp.gate", ["layers.3.mlp.gate"], False),
        ("model.decoder.self_attn.o_proj", [r"re:.*layers\.80\..*"], False),
    ],
)
def test_sglang_ignores(prefix, ignore, ignored):
    assert sglang_ignores(prefix, ignore) is ignored


def test_sglang_refuses_what_nothing_matches():
    assert sglang_target(f".{EXPERT}", ["Linear"]) == "Linear"
    with pytest.raises(RuleConflict, match="neither ignore nor a target"):
        sglang_target(f".{QKV}", [r"re:.*experts.*"])


@pytest.mark.parametrize(
    ("wildcards", "vllm", "sglang"),
    [
        ([f"{LAYER}.self_attn*"], True, False),  # SGLang's name begins with a dot
        (["*self_attn*"], True, True),
        (["self_attn"], True, True),  # vLLM: part of the name; SGLang: one of its parts
        (["self_at"], True, False),
        ([f"{LAYER}.self_attn.{shard}_proj" for shard in "qkv"], True, False),
        (["lm_head"], False, False),
    ],
)
def test_modelopt_wildcards(wildcards, vllm, sglang):
    assert vllm_excludes(QKV, wildcards) is vllm
    assert sglang_excludes(f".{QKV}", wildcards) is sglang


def test_modelopt_experts_are_one_module():
    assert vllm_excludes(EXPERT, [f"{LAYER}.mlp.experts"])
    assert sglang_excludes(f".{EXPERT}", ["experts"])
    with pytest.raises(RuleConflict, match="some but not all"):
        vllm_excludes(QKV, [f"{LAYER}.self_attn.q_proj"])

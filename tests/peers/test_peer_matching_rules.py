"""Our reading of vLLM's matching rules against vLLM itself, where it is installed.

`make test-peers` runs it in an environment that has vLLM.
"""

from __future__ import annotations

import random
from fnmatch import fnmatch

import pytest

from hy3.checkpoint.engine_rules import (
    FUSED_SHARDS,
    RuleConflict,
    engine_module,
    vllm_excludes,
    vllm_ignores,
    vllm_target,
)
from hy3.checkpoint.fp8_rules import vllm_skips
from hy3.checkpoint.model_config import parse_config
from hy3.checkpoint.names import expected_tensors, module_of
from support.real_models import HY3

pytest.importorskip("vllm", reason="vLLM is not installed: make test-peers")

ROUNDS = 1000
FUSED = {fused: list(shards) for fused, shards in FUSED_SHARDS.items()}
CLASSES = {
    "qkv_proj": "QKVParallelLinear",
    "gate_up_proj": "MergedColumnParallelLinear",
    "o_proj": "RowParallelLinear",
    "down_proj": "RowParallelLinear",
    "gate": "GateLinear",
    "eh_proj": "Linear",
    "lm_head": "ParallelLMHead",
}
LAYER = "model.layers.3"
PATTERNS = [
    *("lm_head", "Linear", "RowParallelLinear", "parallel"),
    *("re:.*self_attn.*", "re:self_attn", "re:model.*", "re:.*q_proj$", "re:.*[qk]_proj"),
    *(r"re:.*\.v_proj$", r"re:.*mlp\.(gate|up|down)_proj$", "re:.*shared_mlp.*"),
    *(r"re:.*mlp\.(gate|up|down|gate_up)_proj$", r"re:.*mlp\.gate$", "re:.*eh_proj.*"),
    *(r"re:.*layers\.80\..*", "re:.*experts.*", r"re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$"),
    *(f"{LAYER}.self_attn.{shard}_proj" for shard in ("qkv", "q", "k", "v")),
    *(f"{LAYER}.mlp.shared_mlp.{shard}_proj" for shard in ("gate", "up")),
]
WILDCARDS = [
    *("lm_head", "*self_attn*", "self_attn", "*mlp.gate*", "*experts*", "experts.0"),
    *(f"{LAYER}.self_attn.{shard}_proj" for shard in ("q", "k", "v")),
    *(f"{LAYER}.mlp.experts", "model.layers.80*"),
]
MODULES = sorted(
    {
        engine_module(module_of(name))
        for name, spec in expected_tensors(parse_config(HY3)).items()
        if len(spec.shape) == 2
        and name.startswith(("model.layers.0.", f"{LAYER}.", "model.layers.80.", "lm_head"))
    }
)


def ours(ask, *arguments):
    try:
        return ask(*arguments)
    except RuleConflict:
        return "conflict"


def theirs(ask, *arguments):
    try:
        return ask(*arguments)
    except ValueError:
        return "conflict"


def test_compressed_tensors():
    from vllm.model_executor.layers.quantization.compressed_tensors import utils

    generator = random.Random(0)
    for _ in range(ROUNDS):
        patterns = generator.sample(PATTERNS, generator.randint(0, 6))
        for module in MODULES:
            expected = theirs(utils.should_ignore_layer, module, patterns, FUSED)
            assert ours(vllm_ignores, module, patterns) == expected, (module, patterns)
            expert = ".experts." in module
            kind = "RoutedExperts" if expert else CLASSES[module.rpartition(".")[2]]
            # vLLM lets a target for all linears stand for its fused experts.
            targets = patterns + ["RoutedExperts"] * (expert and "Linear" in patterns)
            found = utils.find_matched_target(module, type(kind, (), {})(), targets, FUSED)
            expected = "Linear" if found == "RoutedExperts" else found
            assert vllm_target(module, patterns) == expected, (module, patterns)


def test_modelopt():
    from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped

    def excluded(prefix, wildcards):
        if not wildcards:
            return False
        if is_layer_skipped(prefix, wildcards, FUSED):
            return True
        parts = any(each != prefix and each in prefix for each in wildcards)
        return parts or any(fnmatch(prefix, each) for each in wildcards)

    generator = random.Random(1)
    for _ in range(ROUNDS):
        wildcards = generator.sample(WILDCARDS, generator.randint(0, 4))
        for module in MODULES:
            prefix = module.partition(".0.")[0] if ".experts." in module else module
            expected = theirs(excluded, prefix, wildcards)
            assert ours(vllm_excludes, module, wildcards) == expected, (module, wildcards)


def test_ignored_layers_of_the_method_fp8() -> None:
    from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped

    chance = random.Random(2)
    plain = [name for name in PATTERNS if not name.startswith("re:")]
    layers = [f"{LAYER}.self_attn", f"{LAYER}.self_attn.o_proj", f"{LAYER}.mlp", "self_attn"]
    experts = ["experts", "mlp.experts", f"{LAYER}.mlp.experts", f"{LAYER}.mlp.experts.0.up_proj"]
    # The rest of MODULES is built without a quantization, which vLLM decides elsewhere.
    asked = [
        name for name in MODULES if name.rpartition(".")[2] not in ("gate", "eh_proj", "lm_head")
    ]
    assert asked
    for _ in range(ROUNDS):
        ignored = chance.sample([*plain, *layers, *experts], chance.randint(0, 8))
        for module in asked:
            unit, is_expert, _ = module.partition(".mlp.experts.")
            prefix = f"{unit}.mlp.experts" if is_expert else module
            try:
                theirs: object = is_layer_skipped(prefix, ignored, FUSED)
            except ValueError:
                theirs = "refused"
            try:
                ours: object = vllm_skips(module, ignored)
            except RuleConflict:
                ours = "refused"
            assert ours == theirs, (module, ignored)

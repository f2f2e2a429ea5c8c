"""How vLLM and SGLang decide whether a ``quantization_config`` covers a module.

Both see modules under names of their own, some of them fused, and match patterns by rules that
differ in small ways; a config that one engine accepts can make the other fail or compute garbage.
The first rules are those for compressed-tensors, the last two those for ModelOpt's wildcards;
``fp8_rules`` has those of the method that the engines call fp8.
Sources: vLLM 0.32/0.33 and SGLang 0.5.23, their quantization and hy_v3 code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache

from hy3.checkpoint.model_config import Hy3Config

FUSED_SHARDS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
# Targets may name a class; an engine compares them with the class of its own module.
_CLASSES = {
    "qkv_proj": "QKVParallelLinear",
    "gate_up_proj": "MergedColumnParallelLinear",
    "o_proj": "RowParallelLinear",
    "down_proj": "RowParallelLinear",
    "gate": "ReplicatedLinear",
    "eh_proj": "Linear",
    "lm_head": "ParallelLMHead",
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"(.+\.mlp\.experts)\.\d+\.((?:gate|up|down)_proj)")


class RuleConflict(Exception):
    """The engine itself would refuse the config for this module; the text says why."""


def engine_module(module: str) -> str:
    """The name under which both engines build the linear ``module`` of a file, MTP aside.

    q, k, v and gate, up are fused; the router loses its folder; engines decide once per layer on
    expert 0, so every expert stands for that one.
    """
    head, _, last = module.rpartition(".")
    expert = _EXPERT.fullmatch(module)
    if expert:
        return f"{expert[1]}.0.{expert[2]}"
    if head.endswith(".mlp.router"):
        return head.removesuffix(".router") + ".gate"
    for fused, shards in FUSED_SHARDS.items():
        if last in shards:
            return f"{head}.{fused}"
    return module


def engine_unit(module: str) -> str:
    """What engines build as one and give one scheme: a fused linear, or all experts of a layer."""
    expert = _EXPERT.fullmatch(module)
    return expert[1] if expert else engine_module(module)


def vllm_modules(module: str) -> tuple[str, ...]:
    """vLLM's prefixes of an ``engine_module``; 0.26 lets the shared expert have its MoE's."""
    head, _, last = module.rpartition(".")
    if head.endswith(".mlp.shared_mlp"):
        return (module, f"{head.removesuffix('.shared_mlp')}.{last}")
    return (module,)


def sglang_module(module: str, config: Hy3Config) -> str:
    """SGLang's prefix of an ``engine_module``: a leading dot, and ``model.decoder`` for MTP."""
    layer = _LAYER.fullmatch(module)
    if layer and int(layer[1]) >= config.num_layers:
        name = layer[2]
        return "model.eh_proj" if name == "eh_proj" else f"model.decoder.{name}"
    return f".{module}"


def vllm_ignores(prefix: str, ignore: Iterable[str]) -> bool:
    """Whether vLLM leaves the module alone: by its own name, else by all shards of a fused one.

    Raises:
        RuleConflict: when only some shards of a fused module are ignored.
    """
    ignore = tuple(ignore)
    if _matches_any(prefix, ignore):
        return True
    ignored = [_matches_any(shard, ignore) for shard in shards_of(prefix)]
    if any(ignored) and not all(ignored):
        raise RuleConflict(f"ignore covers some but not all shards of {prefix}")
    return bool(ignored) and all(ignored)


def vllm_target(prefix: str, targets: Iterable[str]) -> str | None:
    """The target that vLLM finds for a module: by name, by all shards, then by class."""
    targets = tuple(targets)
    direct = _first_match(prefix, targets)
    if direct is not None:
        return direct
    matches = [_first_match(shard, targets) for shard in shards_of(prefix)]
    if matches and None not in matches:
        return matches[0]
    return _class_target(prefix, targets)


def sglang_ignores(prefix: str, ignore: Iterable[str]) -> bool:
    """Whether SGLang leaves the module alone; hy_v3 defines no fused mapping there."""
    return any(_matches(prefix, pattern) or _is_suffix(prefix, pattern) for pattern in ignore)


def sglang_target(prefix: str, targets: Iterable[str]) -> str:
    """The target that SGLang finds for a module that is not ignored.

    Raises:
        RuleConflict: when nothing matches, which stops SGLang while it builds the model.
    """
    targets = tuple(targets)
    found = _first_match(prefix, targets) or _class_target(prefix, targets)
    if found is None:
        raise RuleConflict(f"neither ignore nor a target matches {prefix}")
    return found


def vllm_excludes(prefix: str, wildcards: Iterable[str]) -> bool:
    """Whether vLLM leaves a module of a ModelOpt file alone; a part of its name is enough.

    Raises:
        RuleConflict: when only some shards of a fused module are excluded by name.
    """
    wildcards = tuple(wildcards)
    expert = _EXPERT.fullmatch(prefix)
    prefix = expert[1] if expert else prefix
    named = [shard in wildcards for shard in shards_of(prefix)]
    if any(named) and not all(named) and prefix not in wildcards:
        raise RuleConflict(f"the list excludes some but not all shards of {prefix}")
    return (bool(named) and all(named)) or any(
        wildcard in prefix or fnmatchcase(prefix, wildcard) for wildcard in wildcards
    )


def sglang_excludes(prefix: str, wildcards: Iterable[str]) -> bool:
    """Whether SGLang leaves a module of a ModelOpt file alone: whole name, or one part of it."""
    expert = _EXPERT.fullmatch(prefix)
    prefix = expert[1] if expert else prefix
    names = [prefix, *prefix.split(".")]
    return any(fnmatchcase(name, wildcard) for wildcard in wildcards for name in names)


def shards_of(prefix: str) -> list[str]:
    """The linears that a fused one is made of; none for another."""
    head, _, last = prefix.rpartition(".")
    return [f"{head}.{shard}" for shard in FUSED_SHARDS.get(last, ())]


def _class_target(prefix: str, targets: Iterable[str]) -> str | None:
    """A class target is contained in the class name, whatever the case."""
    targets = tuple(targets)
    if _EXPERT.fullmatch(prefix):
        # The engines let a target for all linears stand for their fused experts too.
        return "Linear" if "Linear" in targets else None
    name = _CLASSES.get(prefix.rpartition(".")[2], "")
    for target in targets:
        regex = target.startswith("re:")
        if _matches(name, target) if regex else target.lower() in name.lower():
            return target
    return None


def _first_match(name: str, patterns: Iterable[str]) -> str | None:
    return next((pattern for pattern in patterns if _matches(name, pattern)), None)


def _matches_any(name: str, patterns: Iterable[str]) -> bool:
    return _first_match(name, patterns) is not None


def _matches(name: str, pattern: str) -> bool:
    """``re:`` patterns are anchored at the start only; others are whole names."""
    if pattern.startswith("re:"):
        return _compiled(pattern[3:]).match(name) is not None
    return name == pattern


def _is_suffix(name: str, pattern: str) -> bool:
    return not pattern.startswith("re:") and name.endswith(f".{pattern}")


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)

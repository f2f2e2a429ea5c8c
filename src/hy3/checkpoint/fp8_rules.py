"""Whether vLLM and SGLang leave a module in BF16 under ``quant_method: fp8``.

The list ``ignored_layers`` holds plain names, matched by each engine in its own way. Only linears
and routed experts are asked; the rest never becomes FP8, whatever the list says.
Sources: vLLM 0.33 (``Fp8Config``, ``is_layer_skipped``) and SGLang's files of the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hy3.checkpoint.engine_rules import RuleConflict, shards_of

# Built by both engines without a quantization: the head, the router and the MTP projection.
_NEVER = ("lm_head", "gate", "eh_proj")


def vllm_skips(prefix: str, ignored: Iterable[str]) -> bool:
    """By the whole name, of a fused linear or of all its shards; experts once for a layer.

    Raises:
        RuleConflict: only some shards of a fused linear are named.
    """
    names = tuple(ignored)
    if _never(prefix):
        return True
    experts, is_expert, _ = prefix.partition(".mlp.experts.")
    if is_expert:
        return any(f"{experts}.mlp.experts" in name for name in names if "experts" in name)
    if prefix in names:
        return True
    return _all_shards(prefix, lambda shard: shard in names)


def sglang_skips(prefix: str, ignored: Iterable[str]) -> bool:
    """By whole parts of the name, of all shards of a fused linear; experts once for a layer.

    Raises:
        RuleConflict: only some shards of a fused linear are named.
    """
    names = [
        name
        for each in ignored
        for name in (each.removeprefix("model."), f"model.{each.removeprefix('model.')}")
    ]
    if _never(prefix):
        return True
    experts, is_expert, _ = prefix.partition(".mlp.experts.")
    if is_expert:
        unit = f"{experts}.mlp.experts"
        return _has_part(unit, names) or any(unit in name for name in names if "experts" in name)
    return _all_shards(prefix, lambda shard: _has_part(shard, names))


def _never(prefix: str) -> bool:
    return prefix.rpartition(".")[2] in _NEVER


def _has_part(prefix: str, names: Iterable[str]) -> bool:
    return any(f".{name.rstrip('.')}." in f".{prefix}." for name in names)


def _all_shards(prefix: str, skips: Callable[[str], bool]) -> bool:
    skipped = {skips(shard) for shard in shards_of(prefix) or [prefix]}
    if len(skipped) > 1:
        raise RuleConflict(f"ignored_layers names some but not all shards of {prefix}")
    return skipped.pop()

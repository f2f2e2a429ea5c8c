"""``QuantizationConfig``: the ``quantization_config`` of config.json as the engines read it.

compressed-tensors, ModelOpt and the engines' own ``fp8``; what any means for one module depends on
the engine, so there is a question for each. The bytes of a checkpoint are described by its tensors,
not by this; ``scheme_writer`` writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hy3.checkpoint.engine_rules import (
    sglang_excludes,
    sglang_ignores,
    sglang_target,
    vllm_excludes,
    vllm_ignores,
    vllm_target,
)
from hy3.checkpoint.forms import BLOCK_SIZE, FP8, FP8_BLOCK, FP8_BLOCK_INV, FP8_TENSOR
from hy3.checkpoint.fp8_rules import sglang_skips, vllm_skips
from hy3.checkpoint.patterns import BadPatternError, check_pattern
from hy3.checkpoint.strict_json import shown
from hy3.errors import InputError

METHOD_COMPRESSED_TENSORS = "compressed-tensors"
METHOD_MODELOPT = "modelopt"
METHOD_FP8 = "fp8"
METHODS = (METHOD_COMPRESSED_TENSORS, METHOD_MODELOPT, METHOD_FP8)
ACTIVATION_SCHEMES = ("static", "dynamic")
_MODELOPT_FP8 = {"FP8_PER_CHANNEL_PER_TOKEN": FP8, "FP8_PB_WO": FP8_BLOCK}


@dataclass(frozen=True)
class Group:
    """Targets that share one scheme."""

    targets: tuple[str, ...]
    scheme: str  # "nvfp4", an FP8 form, or "other"
    weight_only: bool


@dataclass(frozen=True)
class QuantizationConfig:
    """What the config claims; ``ignore`` wins over the targets of every group."""

    method: str  # of METHODS
    groups: tuple[Group, ...]
    ignore: tuple[str, ...]
    kv_cache_fp8: bool
    static_activations: bool = False  # whether METHOD_FP8 wants their scales stored

    def vllm_scheme(self, prefix: str) -> str | None:
        """The scheme vLLM gives to the module it calls ``prefix``; None leaves it in BF16.

        Raises:
            RuleConflict: when vLLM would refuse the config at this module.
        """
        if self.method == METHOD_MODELOPT:
            return None if vllm_excludes(prefix, self.ignore) else self.groups[0].scheme
        if self.method == METHOD_FP8:
            return None if vllm_skips(prefix, self.ignore) else self.groups[0].scheme
        if vllm_ignores(prefix, self.ignore):
            return None
        return self._scheme_of(vllm_target(prefix, self._targets()))

    def sglang_scheme(self, prefix: str) -> str | None:
        """The scheme SGLang gives to the module it calls ``prefix``; None leaves it in BF16.

        Raises:
            RuleConflict: when SGLang would refuse the config at this module.
        """
        if self.method == METHOD_MODELOPT:
            return None if sglang_excludes(prefix, self.ignore) else self.groups[0].scheme
        if self.method == METHOD_FP8:
            return None if sglang_skips(prefix, self.ignore) else self.groups[0].scheme
        if sglang_ignores(prefix, self.ignore):
            return None
        return self._scheme_of(sglang_target(prefix, self._targets()))

    def _targets(self) -> tuple[str, ...]:
        return tuple(target for group in self.groups for target in group.targets)

    def _scheme_of(self, target: str | None) -> str | None:
        # The engines keep a map from target to scheme: the last group of a target wins.
        for group in reversed(self.groups):
            if target in group.targets:
                return group.scheme
        return None


def parse_quantization_config(
    raw: dict[str, Any], where: str = "config.json"
) -> QuantizationConfig | None:
    """Read the key ``quantization_config`` of a whole config.json; None when there is none.

    Raises:
        InputError: when the method is unknown or a value has another form than its method's.
    """
    value = raw.get("quantization_config")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _fault("quantization_config is not an object", where)
    method = value.get("quant_method")
    if method == METHOD_COMPRESSED_TENSORS:
        return _parse_compressed_tensors(value, where)
    if method == METHOD_MODELOPT:
        return _parse_modelopt(value, where)
    if method == METHOD_FP8:
        return _parse_fp8(value, where)
    raise _fault(
        f"quant_method {shown(method)} is unknown",
        where,
        hint=f"known are {', '.join(METHODS)}",
    )


def _parse_compressed_tensors(value: dict[str, Any], where: str) -> QuantizationConfig:
    raw_groups = value.get("config_groups")
    if not isinstance(raw_groups, dict) or not raw_groups:
        raise _fault("quantization_config.config_groups is not an object with groups", where)
    groups = []
    for name, group in raw_groups.items():
        if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
            raise _fault(f"config_groups.{name} has no weights", where)
        targets = _patterns(group.get("targets"), f"config_groups.{name}.targets", where)
        weight_only = group.get("input_activations") is None
        groups.append(Group(targets, _scheme_of_weights(group["weights"]), weight_only))
    ignore = _patterns(value.get("ignore") or [], "ignore", where)
    kv_cache = value.get("kv_cache_scheme") is not None
    return QuantizationConfig(METHOD_COMPRESSED_TENSORS, tuple(groups), ignore, kv_cache)


def _scheme_of_weights(weights: dict[str, Any]) -> str:
    kind = (weights.get("num_bits"), weights.get("type"), weights.get("strategy"))
    if kind == (4, "float", "tensor_group") and weights.get("group_size") == 16:
        return "nvfp4"
    if kind[:2] == (8, "float"):
        return {"channel": FP8, "block": FP8_BLOCK}.get(str(kind[2]), FP8_TENSOR)
    return "other"


def _parse_modelopt(value: dict[str, Any], where: str) -> QuantizationConfig:
    """ModelOpt quantizes every linear that its list of wildcards does not exclude."""
    nested = value.get("quantization")
    value = nested if isinstance(nested, dict) else value
    algorithm = str(value.get("quant_algo", "")).upper()
    scheme = "nvfp4" if "NVFP4" in algorithm else "other"
    if "FP8" in algorithm:
        scheme = _MODELOPT_FP8.get(algorithm, FP8_TENSOR)
    key = "exclude_modules" if "exclude_modules" in value else "ignore"
    ignore = _patterns(value.get(key) or [], key, where)
    # Weight-only NVFP4 is the algorithm W4A16_NVFP4; the plain one also quantizes activations.
    group = Group(("Linear",), scheme, "A16" in algorithm)
    kv_cache = str(value.get("kv_cache_quant_algo", "")).upper() == "FP8"
    return QuantizationConfig(METHOD_MODELOPT, (group,), ignore, kv_cache)


def _parse_fp8(value: dict[str, Any], where: str) -> QuantizationConfig:
    """The engines quantize every linear that the list does not name, in blocks of a size if any."""
    activations, block = value.get("activation_scheme"), value.get("weight_block_size")
    if activations not in ACTIVATION_SCHEMES:
        raise _fault(f"activation_scheme {shown(activations)} is not static or dynamic", where)
    if block is not None and (not isinstance(block, list) or len(block) != 2):
        raise _fault(f"weight_block_size {shown(block)} is not two numbers", where)
    if block is not None and activations != "dynamic":
        raise _fault("weight_block_size needs the activation_scheme dynamic", where)
    scheme = FP8_TENSOR
    if block is not None:
        scheme = FP8_BLOCK_INV if block == [BLOCK_SIZE, BLOCK_SIZE] else "other"
    key = "ignored_layers" if value.get("ignored_layers") else "modules_to_not_convert"
    ignore = _patterns(value.get(key) or [], key, where)
    static = activations == "static"
    return QuantizationConfig(
        METHOD_FP8, (Group(("Linear",), scheme, False),), ignore, False, static
    )


def _patterns(value: Any, key: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _fault(f"{key} is not a list of strings", where)
    for item in value:
        if item.startswith("re:"):
            try:
                check_pattern(item[3:])
            except BadPatternError as error:
                raise _fault(f"{key} holds the bad pattern {error}", where) from error
    return tuple(value)


def _fault(message: str, where: str, hint: str = "") -> InputError:
    return InputError(message, hint=hint or "restore the original config.json", where=where)

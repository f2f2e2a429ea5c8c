"""Writes the ``quantization_config`` of a checkpoint from the forms of its weights.

compressed-tensors: a group of targets for each form, and an ``ignore`` list for every other linear.
ModelOpt: one algorithm for every linear that its list of wildcards does not exclude. Both name
linears as vLLM and as SGLang build them (``engine_rules``): fused or not, with a leading dot or
with ``model.decoder`` for the MTP layer, hence the leading ``.*``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hy3.checkpoint.forms import BF16, BLOCK_SIZE, FP8, FP8_BLOCK, MODELOPT_NVFP4, NVFP4
from hy3.checkpoint.model_config import Hy3Config
from hy3.checkpoint.names import is_mtp, layer_of, module_of, tensor_class
from hy3.checkpoint.quantization_config import METHOD_COMPRESSED_TENSORS, METHOD_MODELOPT

MODELOPT_FILE = "hf_quant_config.json"
LAYOUTS = (METHOD_COMPRESSED_TENSORS, METHOD_MODELOPT)
_FLOAT = {"type": "float", "symmetric": True, "dynamic": False}
_FP8_BITS = {"num_bits": 8, **_FLOAT}
# form -> format, weights, activations
_SCHEMES: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    NVFP4: (
        "nvfp4-pack-quantized",
        {"num_bits": 4, **_FLOAT, "strategy": "tensor_group", "group_size": 16},
        None,
    ),
    FP8: ("float-quantized", {**_FP8_BITS, "strategy": "channel"}, None),
    FP8_BLOCK: (
        "float-quantized",
        {**_FP8_BITS, "strategy": "block", "block_structure": [BLOCK_SIZE, BLOCK_SIZE]},
        {**_FP8_BITS, "strategy": "group", "group_size": BLOCK_SIZE, "dynamic": True},
    ),
}


@dataclass(frozen=True)
class _Kind:
    """Linears that engines build as one, in every layer; the dense and the shared MLP alike.

    vLLM 0.26 gives both the same name, so only the layer can tell them apart.
    """

    name: str
    places: tuple[str, ...]  # their parents within a layer
    parts: tuple[str, ...]  # all names of the linear, fused and not

    def regex(self) -> str:
        """Matches their names within a layer."""
        places = "|".join(place.replace(".", r"\.") for place in self.places)
        places = places if len(self.places) == 1 else f"({places})"
        parts = self.parts[0] if len(self.parts) == 1 else f"({'|'.join(self.parts)})"
        return rf"{places}\.{parts}$"

    def wildcards(self) -> Iterable[str]:
        """The same for ModelOpt, which sees all experts of a layer as ``mlp.experts``."""
        if self is _EXPERTS:
            return ("mlp.experts*",)
        return (f"{place}.{part}" for place in self.places for part in self.parts)


_MLP = ("mlp", "mlp.shared_mlp")
_EXPERTS = _Kind("experts", (r"mlp.experts.\d+",), ("gate_proj", "up_proj", "down_proj"))
_KINDS = (
    _Kind("qkv", ("self_attn",), ("qkv_proj", "q_proj", "k_proj", "v_proj")),
    _Kind("o", ("self_attn",), ("o_proj",)),
    _Kind("gate_up", _MLP, ("gate_up_proj", "gate_proj", "up_proj")),
    _Kind("down", _MLP, ("down_proj",)),
    _EXPERTS,
)
# Never quantized.
_PLAIN_REGEXES = ("re:.*router.*", r"re:.*mlp\.gate$", "re:.*eh_proj.*")
_PLAIN_WILDCARDS = ("*router*", "*mlp.gate", "*eh_proj*")


def quantization_config(config: Hy3Config, forms: Mapping[str, str], layout: str) -> dict[str, Any]:
    """The key ``quantization_config`` of config.json.

    Args:
        forms: weight name -> its form, for every weight; at least one is not BF16. Those that
            engines build as one must be of one form.
        layout: one of LAYOUTS
    """
    if layout == METHOD_MODELOPT:
        return {
            "quant_method": METHOD_MODELOPT,
            "quant_algo": "W4A16_NVFP4",
            "group_size": 16,
            "ignore": _wildcards(config, forms),
        }
    ignore = [f"re:.*{each}" for each in _regexes(config, forms, BF16)]
    ignore = [*_head(forms, BF16, "lm_head"), *ignore, *_PLAIN_REGEXES]
    if _plain_mtp(config, forms):
        ignore += [rf"re:.*layers\.{config.num_layers}\..*", r"re:.*decoder\..*"]
    used = [form for form in _SCHEMES if form in forms.values()]
    groups = {}
    for index, form in enumerate(used):
        scheme, weights, activations = _SCHEMES[form]
        targets = [f"re:.*{each}" for each in _regexes(config, forms, form)]
        groups[f"group_{index}"] = {
            "targets": targets + _head(forms, form, "re:.*lm_head$"),
            "weights": weights,
            "input_activations": activations,
            "output_activations": None,
            "format": scheme,
        }
    formats = {_SCHEMES[form][0] for form in used}
    return {
        "quant_method": METHOD_COMPRESSED_TENSORS,
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "config_groups": groups,
        "ignore": ignore,
    }


def modelopt_file(written: Mapping[str, Any]) -> dict[str, Any]:
    """``hf_quant_config.json``, which some readers want beside the key of config.json."""
    return {
        "producer": {"name": "hy3"},
        "quantization": {
            "quant_algo": written["quant_algo"],
            "kv_cache_quant_algo": None,
            "group_size": written["group_size"],
            "exclude_modules": written["ignore"],
        },
    }


def _head(forms: Mapping[str, str], form: str, pattern: str) -> list[str]:
    return [pattern] if forms["lm_head.weight"] == form else []


def _plain_mtp(config: Hy3Config, forms: Mapping[str, str]) -> bool:
    """Whether there is an MTP layer and none of it is quantized."""
    own = [form for name, form in forms.items() if is_mtp(name, config)]
    return bool(own) and set(own) == {BF16}


def _regexes(config: Hy3Config, forms: Mapping[str, str], form: str) -> list[str]:
    """Patterns, without their leading ``.*``, of the kinds and layers that are of a form."""
    found = []
    for kind, layers in _layers_of(config, forms, form):
        if layers is None:
            found.append(kind.regex())
            continue
        trunk = [str(layer) for layer in layers if layer < config.num_layers]
        numbers = [str(layer) for layer in layers]
        found.append(rf"layers\.({'|'.join(numbers)})\.{kind.regex()}")
        if len(trunk) < len(numbers):
            found.append(rf"decoder\.{kind.regex()}")
    return found


def _wildcards(config: Hy3Config, forms: Mapping[str, str]) -> list[str]:
    """ModelOpt's list of what stays BF16."""
    assert set(forms.values()) <= {BF16, MODELOPT_NVFP4}
    found = ["lm_head", *_PLAIN_WILDCARDS]
    if _plain_mtp(config, forms):
        found += [f"*layers.{config.num_layers}.*", "*decoder.*"]
    for kind, layers in _layers_of(config, forms, BF16):
        for part in kind.wildcards():
            if layers is None:
                found.append(f"*{part}")
                continue
            found += [f"*layers.{layer}.{part}" for layer in layers]
            if any(layer >= config.num_layers for layer in layers):
                found.append(f"*decoder.{part}")
    return found


def _layers_of(
    config: Hy3Config, forms: Mapping[str, str], form: str
) -> list[tuple[_Kind, list[int] | None]]:
    """Kind -> the layers where it is of a form, None for all that count.

    An MTP layer without quantized weights is left to patterns of its own.
    """
    layers: dict[str, dict[int, str]] = {kind.name: {} for kind in _KINDS}
    skip_mtp = _plain_mtp(config, forms)
    for name, each in forms.items():
        kind, layer = _kind_of(name), layer_of(name)
        if kind and layer is not None and not (skip_mtp and is_mtp(name, config)):
            layers[kind.name][layer] = each
    found: list[tuple[_Kind, list[int] | None]] = []
    for kind in _KINDS:
        chosen = sorted(layer for layer, each in layers[kind.name].items() if each == form)
        if chosen:
            found.append((kind, None if len(chosen) == len(layers[kind.name]) else chosen))
    return found


def _kind_of(name: str) -> _Kind | None:
    """The kind of a weight, None for what is never quantized or outside the layers."""
    part = module_of(name).rpartition(".")[2]
    if tensor_class(name) == "routed_expert":
        return _EXPERTS
    if tensor_class(name) not in ("attention", "dense_mlp", "shared_expert"):
        return None
    return next(kind for kind in _KINDS if part in kind.parts)

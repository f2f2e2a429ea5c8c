"""Checks that need headers and config only: completeness, dtypes, recipe, engine matching."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hy3.checkpoint.census import Census
from hy3.checkpoint.engine_rules import RuleConflict, engine_module, sglang_module
from hy3.checkpoint.forms import BF16, FP8, INPUT_SCALES, NVFP4, NVFP4_FORMS
from hy3.checkpoint.index import Checkpoint
from hy3.checkpoint.json_file import read_json_object
from hy3.checkpoint.manifest import Manifest
from hy3.checkpoint.model_config import CONFIG_NAME, Hy3Config
from hy3.checkpoint.names import (
    expected_packed_tensors,
    expected_tensors,
    inner_name,
    is_mtp,
    is_routed_expert,
    module_of,
    tensor_class,
)
from hy3.checkpoint.quantization_config import (
    METHOD_COMPRESSED_TENSORS,
    METHOD_MODELOPT,
    QuantizationConfig,
    nvfp4_experts_config,
    parse_quantization_config,
)
from hy3.errors import InputError
from hy3.quantize.verdict import Check, judge, not_proved

_RECIPE = "experts-nvfp4"
_ENGINES = ("scheme", "vllm_matching", "sglang_matching")


def check_layout(
    folder: Path,
    checkpoint: Checkpoint,
    config: Hy3Config,
    census: Census,
    manifest: Manifest | None,
) -> Iterator[Check]:
    """Everything that can be said before a byte of data is read."""
    yield _check_index(checkpoint)
    yield _check_tensors(census)
    wrong = [f"{each.name}: {each.found}, not {each.expected}" for each in census.mismatched]
    yield judge("dtypes", wrong, "tensors have a wrong dtype or shape", "all are as expected")
    yield _check_recipe(checkpoint, census, config, manifest)
    raw = read_json_object(folder / CONFIG_NAME)
    yield _check_model_dtype(raw)
    yield from _check_engines(folder, raw, checkpoint, config, census, manifest)


def _check_index(checkpoint: Checkpoint) -> Check:
    total, declared = checkpoint.total_bytes, checkpoint.declared_bytes
    if declared is not None and declared != total:
        return Check("files", "warn", f"total_size is {declared}, the tensors hold {total} bytes")
    return Check("files", "pass", f"index and {len(checkpoint.headers)} headers are sound")


def _check_tensors(census: Census) -> Check:
    notes = [f"{name} is missing" for name in census.missing]
    for name in census.unexpected:
        inner = inner_name(name)
        notes.append(f"{name} is extra" + (f": engines want {inner}" if inner else ""))
    if notes:
        detail = f"{len(census.missing)} missing, {len(census.unexpected)} extra"
        return Check("tensors", "fail", detail, tuple(notes))
    return Check("tensors", "pass", f"all tensors of {len(census.forms)} weights are there")


def _check_recipe(
    checkpoint: Checkpoint, census: Census, config: Hy3Config, manifest: Manifest | None
) -> Check:
    if manifest is None:
        return not_proved("recipe", "no manifest says what became what")
    parameters = manifest.parameters
    if parameters.recipe != _RECIPE or parameters.mtp not in ("same", "bf16"):
        return not_proved("recipe", f"recipe {parameters.recipe!r} is unknown to this version")
    # Scales of activations or of the KV cache are no strangers, yet no recipe of ours writes them.
    written = expected_packed_tensors(config, quantize_mtp=parameters.mtp == "same")
    others = checkpoint.tensors.keys() - written.keys() - census.forms.keys()
    wrong = [f"{name} is not of the recipe" for name in sorted(others - {*census.unexpected})]
    for name, form in census.forms.items():
        packed = is_routed_expert(name) and (parameters.mtp == "same" or not is_mtp(name, config))
        if form != (NVFP4 if packed else BF16):
            wrong.append(f"{name} is {form}")
    fine = f"forms are those of {parameters.recipe}, mtp {parameters.mtp}"
    return judge("recipe", wrong, "tensors are not what the recipe gives", fine)


def _check_model_dtype(raw: dict[str, Any]) -> Check:
    if raw.get("dtype", raw.get("torch_dtype")) == "bfloat16":
        return Check("model_dtype", "pass", "config.json says bfloat16")
    return Check("model_dtype", "warn", "config.json does not say bfloat16: SGLang takes float16")


def _quantization_value(folder: Path, raw: dict[str, Any]) -> dict[str, Any] | None:
    """The quantization_config, from ModelOpt's older file of its own where config.json has none."""
    value = raw.get("quantization_config")
    own_file = folder / "hf_quant_config.json"
    if value is None and own_file.is_file():
        return {"quant_method": METHOD_MODELOPT, **read_json_object(own_file)}
    return value


def _check_engines(
    folder: Path,
    raw: dict[str, Any],
    checkpoint: Checkpoint,
    config: Hy3Config,
    census: Census,
    manifest: Manifest | None,
) -> Iterator[Check]:
    """What engines make of quantization_config: of its schemes and of whom they are for."""
    try:
        value = _quantization_value(folder, raw)
        method = value.get("quant_method") if isinstance(value, dict) else None
        if value is not None and method not in (METHOD_COMPRESSED_TENSORS, METHOD_MODELOPT, None):
            reason = f"the rules of quant_method {method!r} are not known here"
            yield from (not_proved(identity, reason) for identity in _ENGINES)
            return
        parsed = parse_quantization_config({"quantization_config": value})
    except InputError as error:
        yield from (Check(identity, "fail", str(error)) for identity in _ENGINES)
        return
    yield _check_scheme(value or {}, parsed, checkpoint, config, census, manifest)
    modules = _modules(config, census)
    ask_vllm = parsed.vllm_scheme if parsed else None
    ask_sglang = parsed.sglang_scheme if parsed else None
    vllm = _mismatches(modules, ask_vllm, lambda module: module)
    sglang = _mismatches(modules, ask_sglang, lambda module: sglang_module(module, config))
    fault, fine = "linears are not what the engine takes them for", _fine(parsed)
    for identity, faults in zip(_ENGINES[1:], (vllm, sglang), strict=True):
        yield judge(identity, faults, fault, fine)


def _check_scheme(
    value: dict[str, Any],
    parsed: QuantizationConfig | None,
    checkpoint: Checkpoint,
    config: Hy3Config,
    census: Census,
    manifest: Manifest | None,
) -> Check:
    """The formats that the config names, and whether the scales that they need are stored."""
    if manifest is not None and manifest.parameters.recipe == _RECIPE:
        written = nvfp4_experts_config(config)
        wrong = sorted(_settings(value).items() ^ _settings(written).items())
        notes = [f"{key} is {json.loads(found)}" for key, found in wrong]
        return judge("scheme", notes, "the config is not what the recipe writes", "as written")
    if parsed is None:
        return Check("scheme", "pass", "nothing is quantized and no config says so")
    if any(group.scheme == "nvfp4" and not group.weight_only for group in parsed.groups):
        bare = [
            name
            for name, form in census.forms.items()
            if form in NVFP4_FORMS
            and not any(
                f"{module_of(name)}.{scale}" in checkpoint.tensors for scale in INPUT_SCALES
            )
        ]
        if bare:
            detail = "activations are to be quantized, and their scales are not stored"
            return Check("scheme", "fail", detail, tuple(bare))
    if parsed.kv_cache_fp8 and not any(tensor_class(n) == "kv_scale" for n in checkpoint.tensors):
        return Check(
            "scheme", "warn", "the KV cache is to be FP8 without stored scales: 1.0 is used"
        )
    return Check("scheme", "pass", "the scales that the config's formats need are stored")


def _settings(value: dict[str, Any]) -> dict[str, str]:
    """quantization_config but for names, which the matching checks judge: path -> JSON value."""
    found = {key: item for key, item in value.items() if key not in ("config_groups", "ignore")}
    groups = value.get("config_groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        found |= {f"{name}.{key}": item for key, item in group.items() if key != "targets"}
    return {key: json.dumps(item, sort_keys=True) for key, item in found.items()}


def _fine(parsed: QuantizationConfig | None) -> str:
    if parsed is None:
        return "nothing is quantized and no config says so"
    return "every quantized linear is matched and every other one is left alone"


def _modules(config: Hy3Config, census: Census) -> dict[str, tuple[str, str]]:
    """Linear of the file -> its engine module and its form; not the embedding, never a linear."""
    return {
        name: (engine_module(module_of(name)), census.forms[name])
        for name, spec in expected_tensors(config).items()
        if len(spec.shape) == 2 and tensor_class(name) != "embedding"
    }


def _mismatches(
    modules: dict[str, tuple[str, str]],
    scheme_of: Callable[[str], str | None] | None,
    prefix_of: Callable[[str], str],
) -> list[str]:
    """Linears whose form differs from the scheme that an engine gives to their module."""
    answers: dict[str, tuple[str | None, str]] = {}
    faults = []
    for name, (module, form) in modules.items():
        if module not in answers:
            answers[module] = _ask(scheme_of, prefix_of(module))
        scheme, conflict = answers[module]
        expected = {BF16: None, FP8: "fp8"}.get(form, "nvfp4" if form in NVFP4_FORMS else form)
        if conflict:
            faults.append(f"{name}: {conflict}")
        elif scheme != expected:
            faults.append(f"{name} is {form} but is taken for {scheme or 'unquantized'}")
    return faults


def _ask(scheme_of: Callable[[str], str | None] | None, prefix: str) -> tuple[str | None, str]:
    try:
        return (scheme_of(prefix) if scheme_of else None), ""
    except RuleConflict as conflict:
        return None, str(conflict)

"""Checks that need headers and config only: completeness, dtypes, recipe, engine matching."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hy3.checkpoint.census import Census
from hy3.checkpoint.engine_rules import RuleConflict, engine_module, sglang_module, vllm_modules
from hy3.checkpoint.forms import BF16, INPUT_SCALES, NVFP4_FORMS, parts_of
from hy3.checkpoint.index import Checkpoint
from hy3.checkpoint.json_file import read_json_object
from hy3.checkpoint.manifest import Manifest
from hy3.checkpoint.model_config import CONFIG_NAME, Hy3Config
from hy3.checkpoint.names import expected_tensors, inner_name, module_of, tensor_class
from hy3.checkpoint.quantization_config import (
    METHOD_FP8,
    METHOD_MODELOPT,
    METHODS,
    QuantizationConfig,
    parse_quantization_config,
)
from hy3.checkpoint.scheme_writer import MODELOPT_FILE, quantization_config
from hy3.errors import InputError
from hy3.quantize.assignment import Assignment, assign
from hy3.quantize.check_fp8_method import check_fp8_method
from hy3.quantize.recipe import decode_rules
from hy3.quantize.verdict import Check, judge, not_proved

_ENGINES = ("scheme", "vllm_matching", "sglang_matching")


def check_layout(
    folder: Path,
    checkpoint: Checkpoint,
    config: Hy3Config,
    census: Census,
    manifest: Manifest | None,
    raw: dict[str, Any] | None = None,
) -> Iterator[Check]:
    """Everything that can be said before a byte of data is read.

    ``raw`` is what config.json holds or would hold; without it the folder's is read.
    """
    yield _check_index(checkpoint)
    yield _check_tensors(census)
    wrong = [f"{each.name}: {each.found}, not {each.expected}" for each in census.mismatched]
    yield judge("dtypes", wrong, "tensors have a wrong dtype or shape", "all are as expected")
    assignment, recipe = None, not_proved("recipe", "no manifest says what became what")
    if manifest is not None:
        try:
            assignment = _assignment(manifest, config)
            name = manifest.parameters.recipe
            recipe = _check_recipe(checkpoint, census, config, assignment, name)
        except InputError as error:
            recipe = not_proved("recipe", f"this version would not make it: {error}")
    yield recipe
    raw = read_json_object(folder / CONFIG_NAME) if raw is None else raw
    yield _check_model_dtype(raw)
    yield from _check_engines(folder, raw, checkpoint, config, census, assignment)


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


def _assignment(manifest: Manifest, config: Hy3Config) -> Assignment:
    """What the manifest's parameters make of every weight; InputError when ``assign`` refuses."""
    given = manifest.parameters
    recipe = decode_rules(given.recipe, given.rules, given.fp8_activations)
    return assign(config, recipe, given.mtp, given.format, given.nonfinite_names)


def _check_recipe(
    checkpoint: Checkpoint,
    census: Census,
    config: Hy3Config,
    assignment: Assignment,
    recipe: str,
) -> Check:
    # Scales of activations or of the KV cache are no strangers, yet no recipe of ours writes them.
    expected = expected_tensors(config)
    written = {
        part.name
        for name, form in assignment.forms.items()
        for part in parts_of(expected[name], form)
    }
    others = checkpoint.tensors.keys() - written - census.forms.keys()
    wrong = [f"{name} is not of the recipe" for name in sorted(others - {*census.unexpected})]
    for name, form in census.forms.items():
        if form != assignment.forms[name]:
            wrong.append(f"{name} is {form}")
    fine = f"forms are those of {recipe}, mtp {assignment.mtp}"
    return judge("recipe", wrong, "tensors are not what the recipe gives", fine)


def _check_model_dtype(raw: dict[str, Any]) -> Check:
    if raw.get("dtype", raw.get("torch_dtype")) == "bfloat16":
        return Check("model_dtype", "pass", "config.json says bfloat16")
    return Check("model_dtype", "warn", "config.json does not say bfloat16: SGLang takes float16")


def _quantization_value(folder: Path, raw: dict[str, Any]) -> dict[str, Any] | None:
    """The quantization_config, from ModelOpt's older file of its own where config.json has none."""
    value = raw.get("quantization_config")
    own_file = folder / MODELOPT_FILE
    if value is None and own_file.is_file():
        return {"quant_method": METHOD_MODELOPT, **read_json_object(own_file)}
    return value


def _check_engines(
    folder: Path,
    raw: dict[str, Any],
    checkpoint: Checkpoint,
    config: Hy3Config,
    census: Census,
    assignment: Assignment | None,
) -> Iterator[Check]:
    """What engines make of quantization_config: of its schemes and of whom they are for."""
    try:
        value = _quantization_value(folder, raw)
        method = value.get("quant_method") if isinstance(value, dict) else None
        if value is not None and method not in (*METHODS, None):
            reason = f"the rules of quant_method {method!r} are not known here"
            yield from (not_proved(identity, reason) for identity in _ENGINES)
            return
        parsed = parse_quantization_config({"quantization_config": value})
    except InputError as error:
        yield from (Check(identity, "fail", str(error)) for identity in _ENGINES)
        return
    yield _check_scheme(value or {}, parsed, checkpoint, config, census, assignment)
    modules = _modules(config, census)
    ask_vllm = parsed.vllm_scheme if parsed else None
    ask_sglang = parsed.sglang_scheme if parsed else None
    vllm = _mismatches(modules, ask_vllm, vllm_modules)
    sglang = _mismatches(modules, ask_sglang, lambda module: (sglang_module(module, config),))
    fault, fine = "linears are not what the engine takes them for", _fine(parsed)
    for identity, faults in zip(_ENGINES[1:], (vllm, sglang), strict=True):
        yield judge(identity, faults, fault, fine)


def _check_scheme(
    value: dict[str, Any],
    parsed: QuantizationConfig | None,
    checkpoint: Checkpoint,
    config: Hy3Config,
    census: Census,
    assignment: Assignment | None,
) -> Check:
    """The formats that the config names, and whether the scales that they need are stored."""
    if assignment is not None:
        written = quantization_config(config, assignment.forms, assignment.layout)
        wrong = sorted(_settings(value).items() ^ _settings(written).items())
        notes = [f"{key} is {json.loads(found)}" for key, found in wrong]
        return judge("scheme", notes, "the config is not what the recipe writes", "as written")
    if parsed is None:
        return Check("scheme", "pass", "nothing is quantized and no config says so")
    if parsed.method == METHOD_FP8:
        return check_fp8_method(parsed, checkpoint, census)
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
    prefixes_of: Callable[[str], tuple[str, ...]],
) -> list[str]:
    """Linears whose form differs from the scheme that an engine gives to their module."""
    answers: dict[str, tuple[str | None, str]] = {}
    faults = []
    for name, (module, form) in modules.items():
        prefixes = prefixes_of(module)
        for prefix in prefixes:
            if prefix not in answers:
                answers[prefix] = _ask(scheme_of, prefix)
        found = (_fault_of(name, form, *answers[prefix]) for prefix in prefixes)
        faults += list(filter(None, found))[:1]
    return faults


def _fault_of(name: str, form: str, scheme: str | None, conflict: str) -> str | None:
    if conflict:
        return f"{name}: {conflict}"
    expected = "nvfp4" if form in NVFP4_FORMS else None if form == BF16 else form
    if scheme == expected:
        return None
    return f"{name} is {form} but is taken for {scheme or 'unquantized'}"


def _ask(scheme_of: Callable[[str], str | None] | None, prefix: str) -> tuple[str | None, str]:
    try:
        return (scheme_of(prefix) if scheme_of else None), ""
    except RuleConflict as conflict:
        return None, str(conflict)

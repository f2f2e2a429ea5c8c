"""What of a checkpoint's files stops an engine or makes it compute something else."""

from __future__ import annotations

import re
from pathlib import Path

from hy3.chat.markers import read_marker_suffix
from hy3.checkpoint.census import Census
from hy3.checkpoint.json_file import read_json_if_there
from hy3.checkpoint.model_config import CONFIG_NAME, MODEL_TYPE
from hy3.checkpoint.names import is_mtp, is_routed_expert, tensor_class
from hy3.doctor.check import Check, Finding, clean, inconclusive, not_checked, problem
from hy3.doctor.model_case import ModelCase
from hy3.errors import InputError

_FORMATS = ("awq", "gptq", "nvfp4", "mxfp4", "fp8", "int4")


def _repair(folder: Path) -> tuple[str, ...]:
    return ("hy3", "repair", str(folder))


def files(case: ModelCase) -> Finding:
    """Whether config, index and every header can be read, and fit together."""
    try:
        if case.raw.get("model_type") == MODEL_TYPE:
            _ = case.config
        count, shards = len(case.checkpoint.tensors), len(case.checkpoint.headers)
    except InputError as error:
        return problem(str(error), error.hint)
    return clean(f"{CONFIG_NAME} and the headers of {count} tensors in {shards} shards are sound")


def token_suffix(case: ModelCase) -> Finding:
    """The suffix that the vocabulary's markers bear, beside the key that vLLM reads it from."""
    found = read_marker_suffix(case.folder)
    if found.suffix is None:
        return inconclusive("no tokenizer file here has markers")
    config = read_json_if_there(case.folder / "tokenizer_config.json") or {}
    stated = config.get("token_suffix")
    if found.suffix == (stated or ""):
        return clean(f"markers bear {found.suffix!r}, and token_suffix is {stated!r}")
    evidence = f"markers bear {found.suffix!r} ({found.source}), token_suffix is {stated!r}"
    if case.engine and case.engine.name == "sglang":
        return clean(f"{evidence}; SGLang asks the vocabulary")
    return problem(
        f"{evidence}: vLLM's parsers do not find them", "write the key", _repair(case.folder)
    )


def model_dtype(case: ModelCase) -> Finding:
    """The dtype that SGLang would otherwise take for float16."""
    dtype = case.raw.get("dtype", case.raw.get("torch_dtype"))
    if dtype == "bfloat16":
        return clean("config.json says bfloat16")
    return problem(f"dtype in config.json is {dtype!r}", "write bfloat16", _repair(case.folder))


def top_k(case: ModelCase) -> Finding:
    """A default that engines refuse."""
    config = read_json_if_there(case.folder / "generation_config.json") or {}
    value = config.get("top_k", -1)
    if isinstance(value, int) and (value == -1 or value >= 1):
        return clean("top_k of generation_config.json is usable")
    return problem(
        f"generation_config.json has top_k {value!r}: every request without one is refused",
        "remove the key",
        _repair(case.folder),
    )


def expert_bias(case: ModelCase) -> Finding:
    """The dtype of the bias that chooses experts."""
    stored = {
        name: case.checkpoint.info(name).dtype
        for name in case.checkpoint.tensors
        if tensor_class(name) == "expert_bias"
    }
    if not stored:
        return not_checked("no expert bias is stored under its published name")
    wrong = [f"{name} is {dtype}" for name, dtype in stored.items() if dtype != "F32"]
    if wrong:
        return problem(
            f"{len(wrong)} of {len(stored)} are not F32: {wrong[0]}",
            "take them from the original checkpoint: rounding moves tokens to other experts",
        )
    return clean(f"all {len(stored)} are F32")


def format_of_name(case: ModelCase) -> Finding:
    """What the name promises beside what the config and the tensors say."""
    value = case.raw.get("quantization_config") or {}
    method = str(value.get("quant_method", "none")).lower() if isinstance(value, dict) else "none"
    is_of = {case.census.scheme.lower(), method, *_schemes(case, method)}
    evidence = f"config says {method}; stored is {case.census.scheme}"
    promised = [word for word in _FORMATS if re.search(rf"(?i){word}(?![a-z])", case.name)]
    broken = [word for word in promised if not any(word in each for each in is_of)]
    if broken:
        return problem(
            f"the name {case.name} promises {broken[0].upper()}; {evidence}",
            "choose engine, kernels and flags by config.json, never by the name",
        )
    return clean(evidence)


def _schemes(case: ModelCase, method: str) -> set[str]:
    if method not in ("compressed-tensors", "modelopt"):
        return set()
    parsed = case.quantization
    found = {group.scheme for group in parsed.groups} if parsed else set()
    # Of compressed-tensors, what is neither NVFP4 nor FP8 here is integers.
    return found | ({"int4"} if "other" in found and method == "compressed-tensors" else set())


def ignore_list(case: ModelCase) -> Finding:
    """quantization_config applied to every linear, under the names of the engine."""
    wanted = [case.engine.name] if case.engine else ["vllm", "sglang"]
    answers = {name: case.layout[f"{name}_matching"] for name in wanted}
    for name, (status, detail, tensors) in answers.items():
        if status == "fail":
            return problem(
                f"{name}: {detail}" + (f": {tensors[0]}" if tensors else ""),
                "write the ignore list that both engines read right",
                _repair(case.folder),
            )
    unproved = [detail for status, detail, _ in answers.values() if status == "not_proved"]
    if unproved:
        return inconclusive(unproved[0])
    return clean(f"{' and '.join(wanted)}: {next(iter(answers.values()))[1]}")


def tensor_names(case: ModelCase) -> Finding:
    """Tensors that a loader would skip without a word, or not find."""
    status, detail, tensors = case.layout["tensors"]
    if status == "fail":
        return problem(
            f"{detail}: {tensors[0]}",
            "get a checkpoint with the published names: a loader skips others silently",
        )
    return clean(detail)


def draft_format(case: ModelCase) -> Finding:
    """The form of the draft layer's experts beside those of the trunk."""
    trunk, draft = _expert_forms(case, mtp=False), _expert_forms(case, mtp=True)
    if not draft:
        return not_checked("the config has no draft layer")
    evidence = (
        f"experts: {', '.join(sorted(trunk))}; of the draft layer: {', '.join(sorted(draft))}"
    )
    if trunk == draft:
        return clean(evidence)
    if any(case.layout[f"{name}_matching"][0] == "fail" for name in ("vllm", "sglang")):
        return problem(
            f"{evidence}, and the config does not say so",
            "write the ignore list that says so; a draft read in a wrong form is never accepted",
            _repair(case.folder),
        )
    return inconclusive(
        f"{evidence}, as the config says",
        "SGLang wants --speculative-draft-model-quantization unquant; look at the acceptance",
    )


def _expert_forms(case: ModelCase, mtp: bool) -> set[str]:
    census: Census = case.census
    return {
        form
        for name, form in census.forms.items()
        if is_routed_expert(name) and is_mtp(name, case.config) == mtp
    }


def kv_scales(case: ModelCase) -> Finding:
    """An FP8 cache with scales that were never measured."""
    parsed = case.quantization
    if parsed is None or not parsed.kv_cache_fp8:
        return clean("the config does not ask for an FP8 cache")
    if any(tensor_class(name) == "kv_scale" for name in case.checkpoint.tensors):
        return clean("scales of the FP8 cache are stored")
    return problem(
        "the config asks for an FP8 cache, and no scale is stored: 1.0 is used",
        "serve with --kv-cache-dtype bfloat16 until calibrated scales exist",
    )


CHECKS: tuple[Check[ModelCase], ...] = (
    Check(
        "files-damaged",
        "stops",
        "files are missing, cut off or damaged",
        "https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark",
        files,
    ),
    Check(
        "token-suffix",
        "stops",
        "the parsers do not find the markers",
        "https://github.com/vllm-project/vllm/pull/47192",
        token_suffix,
    ),
    Check(
        "model-dtype",
        "stops",
        "SGLang takes float16 when no dtype is named",
        "https://github.com/sgl-project/sglang/pull/30594",
        model_dtype,
    ),
    Check(
        "top-k-refused",
        "stops",
        "the default top_k is refused",
        "https://github.com/vllm-project/vllm/pull/53054",
        top_k,
    ),
    Check(
        "expert-bias-rounded",
        "wrong",
        "the bias that chooses experts is not F32",
        "https://github.com/vllm-project/vllm/issues/47777",
        expert_bias,
    ),
    Check(
        "name-is-not-format",
        "stops",
        "the name promises another format than the files have",
        "https://github.com/kaitakuai/experiments",
        format_of_name,
    ),
    Check(
        "ignore-list",
        "stops",
        "rules take linears for quantized that are not, or the other way round",
        "https://github.com/vllm-project/vllm/pull/48682",
        ignore_list,
    ),
    Check(
        "tensor-names",
        "wrong",
        "tensors are missing, or bear names that loaders skip",
        "https://github.com/sgl-project/sglang/issues/30816",
        tensor_names,
    ),
    Check(
        "draft-format",
        "slows",
        "the draft layer is stored in another form than the engine reads",
        "https://github.com/Blackwellboy/model-serving-minefield",
        draft_format,
    ),
    Check(
        "kv-scales-missing",
        "wrong",
        "an FP8 cache without scales changes answers",
        "https://huggingface.co/kodelow/Hy3-NVFP4-W4A16",
        kv_scales,
    ),
)

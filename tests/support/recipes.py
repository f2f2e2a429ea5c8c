"""Recipes applied to the shapes of a model, without a checkpoint."""

from __future__ import annotations

from typing import Any

from hy3.checkpoint.engine_rules import RuleConflict, engine_module, sglang_module, vllm_modules
from hy3.checkpoint.forms import stored_specs
from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.manifest import Parameters
from hy3.checkpoint.model_config import Hy3Config
from hy3.checkpoint.names import expected_tensors, module_of
from hy3.checkpoint.quantization_config import parse_quantization_config
from hy3.checkpoint.scheme_writer import quantization_config
from hy3.quantize.assignment import Assignment, assign
from hy3.quantize.recipe import load_recipe

LAYOUT = "compressed-tensors"
PARAMETERS = Parameters(
    recipe="experts-nvfp4",
    scales="exact",
    mtp="same",
    hy3_version="0.1.0",
    format=LAYOUT,
    fp8_activations="none",
    lm_head="bf16",
    rules=load_recipe("experts-nvfp4").encode_rules(),
)
# name -> recipe, --fp8-activations, --lm-head, --format: everything that can be written
VARIANTS = {
    "experts-nvfp4": ("experts-nvfp4", None, None, LAYOUT),
    "experts-nvfp4+modelopt": ("experts-nvfp4", None, None, "modelopt"),
    "experts-nvfp4+head": ("experts-nvfp4", None, "fp8", LAYOUT),
    "attn-fp8": ("experts-nvfp4-attn-fp8", None, None, LAYOUT),
    "attn-fp8+dynamic": ("experts-nvfp4-attn-fp8", "dynamic", None, LAYOUT),
    "attn-fp8+head": ("experts-nvfp4-attn-fp8", None, "fp8", LAYOUT),
    "all-nvfp4": ("all-nvfp4", None, None, LAYOUT),
    "all-nvfp4+modelopt": ("all-nvfp4", None, None, "modelopt"),
    "all-nvfp4+head": ("all-nvfp4", None, "fp8", LAYOUT),
    "fp8": ("fp8", None, None, LAYOUT),
    "fp8+head": ("fp8", None, "fp8", LAYOUT),
}


def assigned(config: Hy3Config, variant: str = "experts-nvfp4", mtp: str = "same") -> Assignment:
    """One of VARIANTS."""
    name, activations, head, layout = VARIANTS[variant]
    return assign(config, load_recipe(name).with_options(activations, head), mtp, layout)


def written_specs(
    config: Hy3Config, variant: str = "experts-nvfp4", mtp: str = "same"
) -> dict[str, TensorSpec]:
    """Every tensor of the output, in canonical order."""
    forms = assigned(config, variant, mtp).forms
    specs = [
        part
        for name, spec in expected_tensors(config).items()
        for part in stored_specs(spec, forms[name])
    ]
    return {spec.name: spec for spec in specs}


def written_config(
    config: Hy3Config, variant: str = "experts-nvfp4", mtp: str = "same"
) -> dict[str, Any]:
    """The quantization_config that is written."""
    assignment = assigned(config, variant, mtp)
    return quantization_config(config, assignment.forms, assignment.layout)


def engine_verdicts(config: Hy3Config, value: dict[str, Any]) -> dict[str, tuple[str | None, ...]]:
    """Weight name -> what vLLM (under each of its names) and SGLang make of its module."""
    parsed = parse_quantization_config({"quantization_config": value})
    answers: dict[tuple[bool, str], str | None] = {}

    def ask(vllm: bool, prefix: str) -> str | None:
        if (vllm, prefix) not in answers:
            scheme_of = parsed.vllm_scheme if vllm else parsed.sglang_scheme
            try:
                answers[vllm, prefix] = scheme_of(prefix)
            except RuleConflict:
                answers[vllm, prefix] = "conflict"
        return answers[vllm, prefix]

    verdicts = {}
    for name in linears(config):
        module = engine_module(module_of(name))
        found = [ask(True, prefix) for prefix in vllm_modules(module)]
        verdicts[name] = (*found, ask(False, sglang_module(module, config)))
    return verdicts


def linears(config: Hy3Config) -> list[str]:
    """Every matrix but the embedding; of the experts the first, for which engines decide."""
    return [
        name
        for name, spec in expected_tensors(config).items()
        if len(spec.shape) == 2 and "embed" not in name
        if ".experts." not in name or ".experts.0." in name
    ]

"""What a recipe makes of every weight of a model, and why some recipes cannot be made.

A recipe is refused here, before anything is read or written, when an engine would refuse the file
or compute garbage from it. Sources: vLLM 0.26 and 0.32, SGLang 0.5.23.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hy3.checkpoint.engine_rules import engine_unit
from hy3.checkpoint.forms import (
    BF16,
    BLOCK_SIZE,
    FP8,
    FP8_BLOCK,
    FP8_FORMS,
    MODELOPT_NVFP4,
    NVFP4,
    NVFP4_FORMS,
)
from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.model_config import Hy3Config
from hy3.checkpoint.names import (
    GROUP_SIZE,
    expected_tensors,
    is_mtp,
    module_of,
    tensor_class,
)
from hy3.checkpoint.quantization_config import METHOD_MODELOPT
from hy3.errors import InputError
from hy3.quantize.recipe import COPY, Recipe

# What is stored after a weight must lie at a multiple of its own element's size.
_ALIGNMENT_BYTES = 4
_NVFP4_MULTIPLE = 64  # elements: packed bytes and scales are multiples of 4
# class -> why it stays as it is
_NEVER = {
    "embedding": "both engines look its rows up in BF16",
    "router": "both engines compute it in fp32 from BF16",
    "expert_bias": "both engines want it in F32",
    "norm": "it is a vector, no linear",
    "mtp_projection": "both engines build it as a plain linear",
}
_UNIT_REASON = "vLLM and SGLang build them as one"


@dataclass(frozen=True)
class Assignment:
    """The form of every weight, and the parameters that led to it."""

    forms: dict[str, str]  # canonical order
    mtp: str  # "same" or "bf16", normalised
    layout: str

    @property
    def quantized(self) -> set[str]:
        """The forms in use besides BF16."""
        return set(self.forms.values()) - {BF16}


def assign(
    config: Hy3Config, recipe: Recipe, mtp: str, layout: str, nonfinite: Collection[str] = ()
) -> Assignment:
    """Apply a recipe.

    Args:
        mtp: "same" treats the MTP layer as the others, "bf16" copies it
        layout: how files name the parts of a weight, see ``scheme_writer.LAYOUTS``
        nonfinite: tensors that cannot be quantized; whatever engines build as one with one of
            them is copied as well, all experts of a layer with an expert

    Raises:
        InputError: when no engine could serve the result, naming rule, weight and reason.
    """
    mtp = mtp if config.num_mtp_layers else "same"
    expected = expected_tensors(config)
    _check_patterns(recipe, expected)
    copied = {engine_unit(module_of(name)) for name in nonfinite}
    forms = {}
    for name, spec in expected.items():
        kept = (mtp == "bf16" and is_mtp(name, config)) or engine_unit(module_of(name)) in copied
        form = COPY if kept else recipe.format_of(name)
        if form != COPY:
            _check_class(recipe, name, form)
            _check_shape(recipe, spec, form)
        forms[name] = BF16 if form == COPY else form
    if set(forms.values()) == {BF16}:
        raise _fault(recipe, "quantizes nothing", "give some class a format other than copy")
    _check_units(recipe, forms)
    if layout == METHOD_MODELOPT:
        forms = _modelopt(recipe, forms)
    return Assignment(forms, mtp, layout)


def _check_patterns(recipe: Recipe, expected: dict[str, TensorSpec]) -> None:
    """A pattern without any match is a slip of the pen."""
    for rule in recipe.rules:
        if rule.by == "match" and not any(map(rule.applies, expected)):
            hint = "match must be the whole name of a module, as model.layers.3.self_attn.o_proj"
            raise _fault(recipe, f"{rule} matches no module of this model", hint)


def _check_class(recipe: Recipe, name: str, form: str) -> None:
    kind = tensor_class(name)
    if kind in _NEVER:
        message = f"{recipe.rule_of(name)} gives {form} to {name} ({kind}): {_NEVER[kind]}"
        raise _fault(recipe, message, f"put a rule with format copy for {kind} before it")
    if kind == "lm_head" and form != FP8:
        message = f"{recipe.rule_of(name)} gives {form} to lm_head"
        hint = "lm_head can be copied or fp8: vLLM loads no packed or block-wise scales for it"
        raise _fault(recipe, message, hint)
    if kind == "routed_expert" and form == FP8:
        message = f"{recipe.rule_of(name)} makes experts FP8 by weight only"
        hint = "vLLM runs FP8 experts with FP8 activations only: --fp8-activations dynamic"
        raise _fault(recipe, message, hint)


def _check_shape(recipe: Recipe, spec: TensorSpec, form: str) -> None:
    rows, columns = spec.shape
    hint = ""
    if form == NVFP4 and (columns % GROUP_SIZE or rows * columns % _NVFP4_MULTIPLE):
        hint = f"it needs columns in groups of {GROUP_SIZE} and {_NVFP4_MULTIPLE} elements "
        hint += "or a multiple"
    elif form in FP8_FORMS and rows * columns % _ALIGNMENT_BYTES:
        hint = f"it needs {_ALIGNMENT_BYTES} elements or a multiple"
    elif form == FP8_BLOCK and not _blocks_fit(spec):
        hint = f"vLLM fuses it, and then wants multiples of {BLOCK_SIZE} rows"
        if tensor_class(spec.name) == "routed_expert":
            hint = f"vLLM's experts want multiples of {BLOCK_SIZE} rows and columns"
    if hint:
        message = f"{spec.name} of shape {rows} x {columns} does not fit {form.upper()}"
        raise _fault(recipe, message, hint)


def _blocks_fit(spec: TensorSpec) -> bool:
    rows, columns = spec.shape
    if tensor_class(spec.name) == "routed_expert":
        return rows % BLOCK_SIZE == 0 and columns % BLOCK_SIZE == 0
    # Of fused parts only the last may end within a block.
    last = module_of(spec.name).rpartition(".")[2]
    return last not in ("q_proj", "k_proj", "gate_proj") or rows % BLOCK_SIZE == 0


def _check_units(recipe: Recipe, forms: dict[str, str]) -> None:
    first: dict[str, str] = {}
    for name, form in forms.items():
        other = first.setdefault(engine_unit(module_of(name)), name)
        if forms[other] != form:
            message = f"makes {other} {forms[other]} and {name} {form}"
            raise _fault(recipe, message, f"{_UNIT_REASON}: give both one format")


def _modelopt(recipe: Recipe, forms: dict[str, str]) -> dict[str, str]:
    others = sorted(set(forms.values()) - {BF16, *NVFP4_FORMS})
    if others:
        raise InputError(
            f"recipe {recipe.name} needs {', '.join(others)}, which this layout cannot say",
            hint="ModelOpt's readers take FP8 weights only with static activation scales, or not "
            "beside W4A16_NVFP4: use --format compressed-tensors",
            where="--format modelopt",
        )
    return {name: MODELOPT_NVFP4 if form == NVFP4 else form for name, form in forms.items()}


def _fault(recipe: Recipe, message: str, hint: str) -> InputError:
    return InputError(message, hint=hint, where=f"recipe {recipe.name}")

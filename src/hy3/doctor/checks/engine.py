"""What the chosen version of an engine can do, where the checkpoint needs it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

from hy3.chat.markers import find_marker_suffix
from hy3.checkpoint.engine_rules import RuleConflict
from hy3.checkpoint.forms import BF16, FP8_FORMS, NVFP4_FORMS
from hy3.checkpoint.names import inner_name, is_routed_expert, module_of
from hy3.checkpoint.quantization_config import METHOD_MODELOPT
from hy3.doctor.check import Check, Finding, Severity, clean, inconclusive, not_checked, problem
from hy3.doctor.engine_matrix import Feature, features
from hy3.doctor.model_case import ModelCase


def _weight_only_experts(case: ModelCase) -> bool:
    parsed = case.quantization
    packed = any(f in NVFP4_FORMS for n, f in case.census.forms.items() if is_routed_expert(n))
    return packed and parsed is not None and any(group.weight_only for group in parsed.groups)


def _misses_shared_expert(case: ModelCase) -> bool:
    """Whether its weights get another scheme where ``shared_mlp`` is left out of their name."""
    rules = case.quantization
    if rules is None:
        return False
    for name, form in case.census.forms.items():
        module = module_of(name)
        if ".mlp.shared_mlp." not in module:
            continue
        prefix = re.sub(r"(gate|up)_proj$", "gate_up_proj", module.replace(".shared_mlp.", "."))
        try:
            scheme = rules.vllm_scheme(prefix)
        except RuleConflict:
            return True
        if scheme != ("nvfp4" if form in NVFP4_FORMS else None if form == BF16 else form):
            return True
    return False


def _weight_only_fp8(case: ModelCase) -> bool:
    groups = case.quantization.groups if case.quantization else ()
    return any(group.weight_only and group.scheme in FP8_FORMS for group in groups)


def _modelopt_with_drafts(case: ModelCase) -> bool:
    parsed = case.quantization
    return parsed is not None and parsed.method == METHOD_MODELOPT and case.census.mtp is not None


_NEEDS: dict[str, Callable[[ModelCase], bool]] = {
    "any weights": lambda case: True,
    "suffixed markers": lambda case: bool(find_marker_suffix(case.folder)),
    "rules that know the shared expert by one name": _misses_shared_expert,
    "a draft layer": lambda case: case.census.mtp is not None,
    "a quantized eh_proj": lambda case: any(
        name.endswith("eh_proj.weight") and form != BF16 for name, form in case.census.forms.items()
    ),
    "weight-only NVFP4 experts": _weight_only_experts,
    "weight-only FP8 weights": _weight_only_fp8,
    "ModelOpt's layout with a draft layer": _modelopt_with_drafts,
    "renamed tensors": lambda case: any(inner_name(name) for name in case.census.unexpected),
}


def _examine(feature: Feature) -> Callable[[ModelCase], Finding]:
    def examine(case: ModelCase) -> Finding:
        engine = case.engine
        if engine is None:
            return not_checked("no --engine was given")
        if not _NEEDS[feature.needs](case):
            return clean(f"does not matter here: needs {feature.needs}")
        if engine.name not in feature.versions:
            return not_checked(f"the table has no entry for {engine.name}")
        named = f"{engine.name} {engine.version}"
        known = feature.known(engine)
        if known:
            return clean(f"{named} is known to be sound here")
        if known is None:
            told = ", ".join(
                f"{version} {'has' if there else 'lacks'} it"
                for version, there in feature.versions[engine.name].items()
            )
            return inconclusive(f"not known of {named} ({told})", feature.fix)
        if feature.depends:
            return inconclusive(f"{named}: {feature.title}; {feature.depends}", feature.fix)
        return problem(f"{named}: {feature.title}", feature.fix)

    return examine


CHECKS: tuple[Check[ModelCase], ...] = tuple(
    Check(each.id, cast(Severity, each.severity), each.title, each.source, _examine(each))
    for each in features()
    if each.needs in _NEEDS
)

"""Which kernel an engine picks for each class of weights on a device, and what to beware of.

Sources: the selection code of vLLM 0.33.0 and SGLang 0.5.23; traps name their report.
"""

from __future__ import annotations

from dataclasses import dataclass

from hy3.hardware.device import Device
from hy3.plan.model_shape import ROUTED, ModelShape, WeightClass
from hy3.plan.settings import NATIVE, SGLANG, Settings

_HOPPER = (9, 0)
_FP8_FROM = (8, 9)
_MARLIN_FROM = (8, 0)
# Seen on an H200 (docs/quantize.md, "In the real kernel") and read in later releases.
_HUMMING = (
    "vLLM 0.26 takes Humming and stops (hy3 doctor says how to have Marlin there); later releases "
    "take Marlin where Humming is not installed"
)


@dataclass(frozen=True)
class KernelChoice:
    """What runs one class of weights; ``caution`` is empty when nothing is known against it."""

    weights: str
    kernel: str
    reason: str
    caution: str = ""


def kernel_choices(shape: ModelShape, device: Device, settings: Settings) -> list[KernelChoice]:
    """One choice for each class of linears in the trunk."""
    return [
        _choice(each, device, settings)
        for each in shape.classes
        if not each.mtp and each.forms and each.name not in ("embedding", "norm", "expert_bias")
    ]


def _choice(each: WeightClass, device: Device, settings: Settings) -> KernelChoice:
    if settings.engine == NATIVE:
        return KernelChoice(each.name, "hy3", "decoded to BF16 at load, run by the engine's own")
    if "U8" in each.forms:
        return _nvfp4(each, device, settings)
    if "F8_E4M3" in each.forms:
        return _fp8(each, device)
    return KernelChoice(each.name, "cuBLAS BF16", "stored in BF16")


def _nvfp4(each: WeightClass, device: Device, settings: Settings) -> KernelChoice:
    if device.capability < _MARLIN_FROM:
        reason = "NVFP4 needs compute capability 8.0"
        return KernelChoice(each.name, "none", reason, "this engine cannot run it here")
    if settings.engine == SGLANG:
        reason = "weight-only NVFP4"
        caution = "" if each.name == ROUTED else "only experts are known to work in 0.5.23"
        return KernelChoice(each.name, "Marlin W4A16", f"{reason}, from SGLang 0.5.23", caution)
    if device.capability == _HOPPER:
        reason = "weights only: every FP4 tensor-core kernel wants quantized activations"
        return KernelChoice(
            each.name, "Marlin W4A16", reason, "Humming instead where its package is installed"
        )
    caution = ""
    if device.unified:
        caution = "pass --moe-backend marlin: native FP4 kernels of SM100 freeze or fail on SM121"
    reason = "weights only; all FP4 tensor-core kernels want quantized activations"
    return KernelChoice(each.name, "Marlin W4A16", reason, caution)


def _fp8(each: WeightClass, device: Device) -> KernelChoice:
    if device.capability < _FP8_FROM:
        reason = "no FP8 tensor cores before 8.9: weights are expanded in the kernel"
        return KernelChoice(each.name, "Humming or Marlin W8A16", reason)
    reason = "stored weight-only: activations stay in BF16"
    if device.unified:
        caution = (
            "keep it so: CUTLASS W8A8 trapped on SM121 "
            f"(https://github.com/eugr/spark-vllm-docker, issue 143); {_HUMMING}"
        )
        return KernelChoice(each.name, "Humming or Marlin W8A16", reason, caution)
    return KernelChoice(
        each.name,
        "Humming or Marlin W8A16 (weight-only), CUTLASS W8A8 (dynamic activations)",
        "config.json decides: input_activations of the group",
        _HUMMING,
    )

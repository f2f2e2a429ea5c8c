"""In which form a checkpoint stores a weight, read from its tensors, not from its config.

A form says which tensors stand for the expected weight ``P.weight`` [out, in].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hy3.checkpoint.header import TensorInfo, TensorSpec
from hy3.checkpoint.names import GROUP_SIZE, module_of

BF16, NVFP4, MODELOPT_NVFP4, FP8 = "bf16", "nvfp4", "modelopt-nvfp4", "fp8"
NVFP4_FORMS = (NVFP4, MODELOPT_NVFP4)
INPUT_SCALES = ("input_global_scale", "input_scale")  # of activations: only in W4A4 and FP8 files


@dataclass(frozen=True)
class Part:
    """One tensor of a form; the shape is None where the form allows several."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    def accepts(self, info: TensorInfo) -> bool:
        """Whether a stored tensor is this part."""
        if info.dtype != self.dtype:
            return False
        return self.shape is None or info.shape == self.shape


def form_of(spec: TensorSpec, find: Callable[[str], TensorInfo | None]) -> str:
    """The form in which ``spec`` is stored; BF16 also stands for "not there at all".

    ``find`` returns the stored tensor of a name, or None.
    """
    if len(spec.shape) != 2:
        return BF16
    module = module_of(spec.name)
    stored = find(spec.name)
    if find(f"{module}.weight_packed") or (not stored and find(f"{module}.weight_scale")):
        return NVFP4
    by_dtype: Mapping[str, str] = {"U8": MODELOPT_NVFP4, "F8_E4M3": FP8}
    return by_dtype.get(stored.dtype, BF16) if stored else BF16


def parts_of(spec: TensorSpec, form: str) -> list[Part]:
    """The tensors that must stand for ``spec`` in a form."""
    if form == BF16:
        return [Part(spec.name, spec.dtype, spec.shape)]
    module = module_of(spec.name)
    rows, columns = spec.shape
    if form == FP8:
        return [
            Part(f"{module}.weight", "F8_E4M3", spec.shape),
            Part(f"{module}.weight_scale", "F32", None),
        ]
    scales = Part(f"{module}.weight_scale", "F8_E4M3", (rows, columns // GROUP_SIZE))
    if form == NVFP4:
        return [
            Part(f"{module}.weight_packed", "U8", (rows, columns // 2)),
            scales,
            Part(f"{module}.weight_global_scale", "F32", (1,)),
        ]
    assert form == MODELOPT_NVFP4, form
    return [
        Part(f"{module}.weight", "U8", (rows, columns // 2)),
        scales,
        Part(f"{module}.weight_scale_2", "F32", None),
    ]


def optional_parts(spec: TensorSpec, form: str) -> list[Part]:
    """Tensors that may accompany the required ones: scales of activations and of the KV cache."""
    module = module_of(spec.name)
    parts = []
    if form != BF16:
        parts += [Part(f"{module}.{suffix}", "F32", None) for suffix in INPUT_SCALES]
    attention, _, last = module.rpartition(".")
    if last in ("q_proj", "k_proj", "v_proj"):
        parts.append(Part(f"{attention}.{last[0]}_scale", "F32", None))
    return parts

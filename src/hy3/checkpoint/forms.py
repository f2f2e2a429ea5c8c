"""In which form a checkpoint stores a weight, read from its tensors, not from its config.

A form says which tensors stand for the expected weight ``P.weight`` [out, in]. The FP8 forms
differ in what one scale is for (a row, a block of 128 x 128, the whole matrix) and in its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hy3.checkpoint.header import TensorInfo, TensorSpec
from hy3.checkpoint.names import GROUP_SIZE, module_of

BF16, NVFP4, MODELOPT_NVFP4 = "bf16", "nvfp4", "modelopt-nvfp4"
FP8, FP8_BLOCK, FP8_TENSOR = "fp8", "fp8-block", "fp8-tensor"
FP8_BLOCK_INV = "fp8-block-inv"  # blocks whose scales have DeepSeek's name, weight_scale_inv
NVFP4_FORMS = (NVFP4, MODELOPT_NVFP4)
FP8_FORMS = (FP8, FP8_BLOCK, FP8_TENSOR, FP8_BLOCK_INV)
_BLOCK_FORMS = (FP8_BLOCK, FP8_BLOCK_INV)
BLOCK_SIZE = 128
# form -> what people call it
FORMAT_NAMES = {
    NVFP4: "NVFP4",
    MODELOPT_NVFP4: "NVFP4",
    FP8: "FP8",
    FP8_BLOCK: "FP8 (128 x 128)",
    FP8_TENSOR: "FP8 (tensor)",
    FP8_BLOCK_INV: "FP8 (128 x 128)",
}
INPUT_SCALES = ("input_global_scale", "input_scale")  # of activations: only in W4A4 and FP8 files
TENSOR_SCALES = ("weight_global_scale", "weight_scale_2")  # a divisor, ModelOpt's multiplier
_CODE_DTYPES = ("U8", "F8_E4M3")
# last part of a tensor's name -> what the tensor is to its weight
_ROLES = {
    "weight_packed": "codes",
    "weight_scale_inv": "scales",
    **dict.fromkeys(TENSOR_SCALES, "tensor scales"),
    **dict.fromkeys(INPUT_SCALES, "input scales"),
    **dict.fromkeys(("q_scale", "k_scale", "v_scale", "scale"), "KV cache scales"),
}

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """One tensor of a form, with the dtypes and shapes that are allowed; the first is ours."""

    name: str
    dtypes: tuple[str, ...]
    shapes: tuple[Shape, ...]  # none: any shape

    def accepts(self, info: TensorInfo) -> bool:
        """Whether a stored tensor is this part."""
        return info.dtype in self.dtypes and (not self.shapes or info.shape in self.shapes)

    @property
    def spec(self) -> TensorSpec:
        """The tensor as ``quantize`` writes it."""
        return TensorSpec(self.name, self.dtypes[0], self.shapes[0])


def role_of(name: str, dtype: str) -> str:
    """What a stored tensor is to its weight: the weight itself, its codes, or which scales."""
    last = name.rpartition(".")[2]
    if last == "weight_scale":  # NVFP4's, of 16 columns, are the only ones in FP8
        return "group scales" if dtype == "F8_E4M3" else "scales"
    if last == "weight" and dtype in _CODE_DTYPES:
        return "codes"
    return _ROLES.get(last, "weights")


def form_of(spec: TensorSpec, find: Callable[[str], TensorInfo | None]) -> str:
    """The form in which ``spec`` is stored; BF16 also stands for "not there at all".

    ``find`` returns the stored tensor of a name, or None.
    """
    if len(spec.shape) != 2:
        return BF16
    module = module_of(spec.name)
    stored, scale = find(spec.name), find(f"{module}.weight_scale")
    if find(f"{module}.weight_packed") or (not stored and scale):
        return NVFP4
    if stored and stored.dtype == "F8_E4M3":
        if find(f"{module}.weight_scale_inv"):
            return FP8_BLOCK_INV
        return _fp8_form(spec.shape, scale)
    return MODELOPT_NVFP4 if stored and stored.dtype == "U8" else BF16


def _fp8_form(shape: Shape, scale: TensorInfo | None) -> str:
    forms = (form for form in FP8_FORMS if scale and scale.shape in _fp8_scale_shapes(shape, form))
    return next(forms, FP8)


def tile_of(shape: Shape, form: str) -> tuple[int, int]:
    """Rows and columns of a matrix that share one scale of an FP8 form."""
    if form in _BLOCK_FORMS:
        return BLOCK_SIZE, BLOCK_SIZE
    return (1 if form == FP8 else shape[0]), shape[1]


def _fp8_scale_shapes(shape: Shape, form: str) -> tuple[Shape, ...]:
    """compressed-tensors' shape, then ModelOpt's."""
    rows, columns = shape
    if form == FP8:
        return (rows, 1), (rows,)
    if form in _BLOCK_FORMS:
        down, across = -(-rows // BLOCK_SIZE), -(-columns // BLOCK_SIZE)
        return (down, across), (down, 1, across, 1)
    return (1,), ()


def parts_of(spec: TensorSpec, form: str) -> list[Part]:
    """The tensors that must stand for ``spec`` in a form, the weight's own first."""
    if form == BF16:
        return [Part(spec.name, (spec.dtype,), (spec.shape,))]
    module = module_of(spec.name)
    rows, columns = spec.shape
    if form in FP8_FORMS:
        shapes = _fp8_scale_shapes(spec.shape, form)
        scale = "weight_scale_inv" if form == FP8_BLOCK_INV else "weight_scale"
        return [
            Part(f"{module}.weight", ("F8_E4M3",), (spec.shape,)),
            Part(f"{module}.{scale}", ("F32", "BF16"), shapes),
        ]
    assert form in NVFP4_FORMS, form
    codes, tensor_scale = {
        NVFP4: ("weight_packed", "weight_global_scale"),
        MODELOPT_NVFP4: ("weight", "weight_scale_2"),
    }[form]
    # A scalar in ModelOpt's files, one element in compressed-tensors'.
    scalar: tuple[Shape, ...] = ((1,), ()) if form == NVFP4 else ((), (1,))
    return [
        Part(f"{module}.{codes}", ("U8",), ((rows, columns // 2),)),
        Part(f"{module}.weight_scale", ("F8_E4M3",), ((rows, columns // GROUP_SIZE),)),
        Part(f"{module}.{tensor_scale}", ("F32",), scalar),
    ]


def stored_specs(spec: TensorSpec, form: str) -> tuple[TensorSpec, ...]:
    """What ``quantize`` writes for ``spec`` in a form."""
    return tuple(part.spec for part in parts_of(spec, form))


def optional_parts(spec: TensorSpec, form: str) -> list[Part]:
    """Tensors that may accompany the required ones: scales of activations and of the KV cache."""
    module = module_of(spec.name)
    parts = []
    if form != BF16:
        parts += [Part(f"{module}.{suffix}", ("F32",), ()) for suffix in INPUT_SCALES]
    attention, _, last = module.rpartition(".")
    if last in ("q_proj", "k_proj", "v_proj"):
        # compressed-tensors' name, then that of tencent/Hy3-FP8
        names = (f"{attention}.{last[0]}_scale", f"{attention}.{last[0]}_cache.scale")
        parts += [Part(name, ("F32",), ()) for name in names]
    return parts

"""Forms told apart by their tensors alone, and the parts that each of them must have."""

from __future__ import annotations

import pytest

from hy3.checkpoint.forms import (
    BF16,
    FP8,
    FP8_BLOCK,
    FP8_TENSOR,
    MODELOPT_NVFP4,
    NVFP4,
    form_of,
    parts_of,
    role_of,
    stored_specs,
    tile_of,
)
from hy3.checkpoint.header import TensorInfo, TensorSpec

P = "model.layers.3.self_attn.o_proj"
WEIGHT = TensorSpec(f"{P}.weight", "BF16", (300, 256))


def found_form(*tensors: tuple[str, str, tuple[int, ...]]) -> str:
    stored = {f"{P}.{n}": TensorInfo(f"{P}.{n}", d, s, 0, 0) for n, d, s in tensors}
    return form_of(WEIGHT, stored.get)


FP8_WEIGHT = ("weight", "F8_E4M3", (300, 256))
CASES = [
    (BF16, [("weight", "BF16", (300, 256))]),
    (NVFP4, [("weight_packed", "U8", (300, 128)), ("weight_scale", "F8_E4M3", (300, 16))]),
    (MODELOPT_NVFP4, [("weight", "U8", (300, 128)), ("weight_scale", "F8_E4M3", (300, 16))]),
    (FP8, [FP8_WEIGHT, ("weight_scale", "F32", (300, 1))]),
    (FP8, [FP8_WEIGHT, ("weight_scale", "F32", (300,))]),  # ModelOpt's FP8_PER_CHANNEL_PER_TOKEN
    (FP8_BLOCK, [FP8_WEIGHT, ("weight_scale", "F32", (3, 2))]),
    (FP8_BLOCK, [FP8_WEIGHT, ("weight_scale", "BF16", (3, 2))]),
    (FP8_BLOCK, [FP8_WEIGHT, ("weight_scale", "F32", (3, 1, 2, 1))]),  # ModelOpt's FP8_PB_WO
    (FP8_TENSOR, [FP8_WEIGHT, ("weight_scale", "F32", (1,)), ("input_scale", "F32", (1,))]),
    (FP8_TENSOR, [FP8_WEIGHT, ("weight_scale", "F32", ())]),
]


@pytest.mark.parametrize(("form", "tensors"), CASES)
def test_each_form_is_told_and_its_parts_accept_it(form, tensors):
    assert found_form(*tensors) == form
    parts = {part.name: part for part in parts_of(WEIGHT, form)}
    for name, dtype, shape in tensors:
        if name != "input_scale":
            assert parts[f"{P}.{name}"].accepts(TensorInfo(f"{P}.{name}", dtype, shape, 0, 0))


def test_a_scale_of_no_known_shape_is_not_accepted():
    scale = TensorInfo(f"{P}.weight_scale", "F32", (7,), 0, 0)
    assert found_form(FP8_WEIGHT, ("weight_scale", "F32", (7,))) == FP8
    assert not parts_of(WEIGHT, FP8)[1].accepts(scale)
    half = TensorInfo(f"{P}.weight_scale", "F16", (300, 1), 0, 0)
    assert not parts_of(WEIGHT, FP8)[1].accepts(half)


def test_what_is_written():
    sizes = {form: sum(spec.nbytes for spec in stored_specs(WEIGHT, form)) for form, _ in CASES}
    elements = 300 * 256
    assert sizes == {
        BF16: 2 * elements,
        NVFP4: elements // 2 + elements // 16 + 4,
        MODELOPT_NVFP4: elements // 2 + elements // 16 + 4,
        FP8: elements + 4 * 300,
        FP8_BLOCK: elements + 4 * 6,
        FP8_TENSOR: elements + 4,
    }
    assert stored_specs(WEIGHT, MODELOPT_NVFP4)[2] == TensorSpec(f"{P}.weight_scale_2", "F32", ())


def test_tiles():
    assert [tile_of((300, 256), form) for form in (FP8, FP8_BLOCK, FP8_TENSOR)] == [
        (1, 256),
        (128, 128),
        (300, 256),
    ]


@pytest.mark.parametrize(
    ("last", "dtype", "role"),
    [
        ("q_proj.weight", "BF16", "weights"),
        ("expert_bias", "F32", "weights"),
        ("q_proj.weight_packed", "U8", "codes"),
        ("q_proj.weight", "U8", "codes"),
        ("q_proj.weight", "F8_E4M3", "codes"),
        ("q_proj.weight_scale", "F8_E4M3", "group scales"),
        ("q_proj.weight_scale", "F32", "scales"),
        ("q_proj.weight_scale", "BF16", "scales"),
        ("q_proj.weight_scale_inv", "F32", "scales"),
        ("q_proj.weight_global_scale", "F32", "tensor scales"),
        ("q_proj.weight_scale_2", "F32", "tensor scales"),
        ("q_proj.input_scale", "F32", "input scales"),
        ("k_cache.scale", "F32", "KV cache scales"),
        ("k_scale", "F32", "KV cache scales"),
    ],
)
def test_every_tensor_says_what_it_is_to_its_weight(last, dtype, role):
    assert role_of(f"model.layers.1.self_attn.{last}", dtype) == role

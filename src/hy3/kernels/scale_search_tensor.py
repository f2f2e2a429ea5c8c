"""The scale search on tensors, on the device where they lie; ``scale_search`` has it for arrays.

The oracle is ``hy3.nvfp4.scales`` put together; the Triton twin gives the same bytes on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from hy3.kernels.dispatch import operation
from hy3.nvfp4.scales import (
    code_shifts,
    group_errors,
    group_weights,
    scaled_groups,
    search_scales,
    weighted_sum,
)
from hy3.nvfp4.tensor import quantize_with_scales

_HAS_TRITON = find_spec("triton") is not None


@dataclass(frozen=True)
class QuantizedTensor:
    """One matrix under one rule. Errors and energies are fp32 sums in units of t squared.

    Under column weights each square in those sums is multiplied by the weight of its column.
    """

    packed: Tensor  # uint8 [out, in / 2]
    scales: Tensor  # uint8 [out, in / 16], E4M3 bit patterns
    errors: Tensor  # fp32 [out, in / 16], squared error of each group
    max_errors: Tensor  # fp32 [out, in / 16], the same under rule max
    energies: Tensor  # fp32 [out, in / 16], sum of the squares of the weights
    shifts: Tensor  # int64 [33], groups by chosen code less that of rule max, clipped to -16..16


@operation
def quantize_tensor(
    weight: Tensor, t: float, rule: str, column_weights: Tensor | None = None
) -> QuantizedTensor:
    """Quantize a finite BF16 matrix [out, in] under a rule; ``t`` is a power of two.

    ``column_weights``: fp32 [in], not negative; see ``search_scales``.
    """
    x, h = scaled_groups(weight, t), group_weights(column_weights)  # [out, groups, 16]
    scales = search_scales(weight, t, rule, column_weights)
    max_scales = search_scales(weight, t, "max")
    return QuantizedTensor(
        packed=quantize_with_scales(weight, scales, 1.0 / t).packed,
        scales=scales,
        errors=group_errors(x, scales, h),
        max_errors=group_errors(x, max_scales, h),
        energies=weighted_sum(x, h),
        shifts=code_shifts(scales, max_scales),
    )


def _on_triton(weight: Tensor, t: float, rule: str, column_weights: Tensor | None = None) -> bool:
    return _HAS_TRITON and weight.is_cuda and weight.dtype == torch.bfloat16


@quantize_tensor.twin("triton", when=_on_triton)
def _quantize_tensor_triton(
    weight: Tensor, t: float, rule: str, column_weights: Tensor | None = None
) -> QuantizedTensor:
    # Imported here: Triton is no part of a CPU install.
    from hy3.kernels.scale_search_triton import quantize_groups

    group_weights(column_weights)  # asserts that they are weights
    return QuantizedTensor(*quantize_groups(weight, t, rule, column_weights))

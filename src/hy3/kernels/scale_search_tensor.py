"""The scale search on tensors, on the device where they lie; ``scale_search`` has it for arrays.

The oracle is ``hy3.nvfp4.scales`` put together; the Triton twin gives the same bytes on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from hy3.kernels.dispatch import operation
from hy3.nvfp4.scales import group_errors, scaled_groups, search_scales, sum_group
from hy3.nvfp4.tensor import quantize_with_scales

_HAS_TRITON = find_spec("triton") is not None


@dataclass(frozen=True)
class QuantizedTensor:
    """One matrix under one rule. Errors and energies are fp32 sums in units of t squared."""

    packed: Tensor  # uint8 [out, in / 2]
    scales: Tensor  # uint8 [out, in / 16], E4M3 bit patterns
    errors: Tensor  # fp32 [out, in / 16], squared error of each group
    max_errors: Tensor  # fp32 [out, in / 16], the same under rule max
    energies: Tensor  # fp32 [out, in / 16], sum of the squares of the weights


@operation
def quantize_tensor(weight: Tensor, t: float, rule: str) -> QuantizedTensor:
    """Quantize a finite BF16 matrix [out, in] under a rule; ``t`` is a power of two."""
    x = scaled_groups(weight, t)  # [out, groups, 16]
    scales = search_scales(weight, t, rule)
    return QuantizedTensor(
        packed=quantize_with_scales(weight, scales, 1.0 / t).packed,
        scales=scales,
        errors=group_errors(x, scales),
        max_errors=group_errors(x, search_scales(weight, t, "max")),
        energies=sum_group(x.square()),
    )


def _on_triton(weight: Tensor, t: float, rule: str) -> bool:
    return _HAS_TRITON and weight.is_cuda and weight.dtype == torch.bfloat16


@quantize_tensor.twin("triton", when=_on_triton)
def _quantize_tensor_triton(weight: Tensor, t: float, rule: str) -> QuantizedTensor:
    # Imported here: Triton is no part of a CPU install.
    from hy3.kernels.scale_search_triton import quantize_groups

    return QuantizedTensor(*quantize_groups(weight, t, rule))

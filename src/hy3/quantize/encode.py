"""One weight in a format: the tensors that are stored for it, and what that did to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hy3.checkpoint.forms import FP8_FORMS, MODELOPT_NVFP4, NVFP4_FORMS, tile_of
from hy3.kernels.fp8_decode import fp8_errors
from hy3.kernels.fp8_encode import encode_fp8
from hy3.kernels.scale_search_device import CPU, Device, quantize_bits_on
from hy3.nvfp4.scales import tensor_scale
from hy3.quantize.stats import WeightStats


@dataclass(frozen=True)
class Encoded:
    """The contents of a step's outputs, in their order."""

    tensors: tuple[NDArray[Any], ...]
    stats: WeightStats


def encode(
    form: str, bits: NDArray[np.uint16], largest: float, scales: str, device: Device = CPU
) -> Encoded:
    """Put a finite BF16 matrix, bit patterns [out, in], into a format.

    Args:
        form: a format of recipes other than "copy"
        largest: the joint largest magnitude of all weights that share the tensor scale
        scales: the scale rule
        device: where scales are searched; the bytes do not depend on it

    The scale rule and the joint magnitude are those of NVFP4; FP8 has one plain rule.
    """
    if form in FP8_FORMS:
        return _encode_fp8(form, bits)
    assert form in NVFP4_FORMS, form
    return _encode_nvfp4(form, bits, tensor_scale(largest), scales, device)


def _encode_fp8(form: str, bits: NDArray[np.uint16]) -> Encoded:
    tile = tile_of(bits.shape, form)
    codes, tile_scales = encode_fp8(bits, tile)
    error, energy = (
        float(sums.sum(dtype=np.float64)) for sums in fp8_errors(bits, codes, tile_scales, tile)
    )
    return Encoded((codes, tile_scales), WeightStats(error, error, energy))


def _encode_nvfp4(
    form: str, bits: NDArray[np.uint16], t: float, scales: str, device: Device
) -> Encoded:
    result = quantize_bits_on(device, bits, t, scales)
    error, max_error, energy = (
        float(sums.sum(dtype=np.float64)) * t * t
        for sums in (result.errors, result.max_errors, result.energies)
    )
    stored = np.array(t if form == MODELOPT_NVFP4 else [1.0 / t], np.float32)
    tensors = (result.packed, result.scales, stored)
    shifts = tuple(result.shifts.tolist())
    return Encoded(tensors, WeightStats(error, max_error, energy, shifts))

"""How far a stored weight is from the one that it was made from, beside plain rounding.

A unit is what one scale stands for: a group of 16 in NVFP4, a row or a block in FP8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hy3.checkpoint.forms import FP8_FORMS, tile_of
from hy3.checkpoint.reader import TensorReader
from hy3.kernels.fp8_decode import fp8_errors
from hy3.kernels.fp8_encode import encode_fp8
from hy3.kernels.scale_search import quantize_bits
from hy3.kernels.stored_errors import stored_errors
from hy3.quantize.verdict import ClassError
from hy3.stored.decode import read_fp8, read_nvfp4
from hy3.stored.weight import StoredWeight

# A unit may be worse than plain rounding by no more than the rounding of an fp32 sum.
_TOLERANCE = 1 + 1e-6


@dataclass(frozen=True)
class Measured:
    """One weight: its error, and how many units are worse than under the plain rule."""

    error: ClassError
    units: int
    worse: int


def measure(bits: NDArray[np.uint16], reader: TensorReader, weight: StoredWeight) -> Measured:
    """Compare with the source's BF16 patterns [out, in].

    The plain rule is ``max`` under the stored tensor scale for NVFP4, amax / 448 for FP8.

    Raises:
        InputError: parts of the weight are missing or unusable.
    """
    if weight.form in FP8_FORMS:
        tile = tile_of(weight.spec.shape, weight.form)
        errors, energies = fp8_errors(bits, *read_fp8(reader, weight), tile)
        plain, _ = fp8_errors(bits, *encode_fp8(bits, tile), tile)
        return _measured(errors, plain, energies, 1.0)
    packed, codes, t = read_nvfp4(reader, weight)
    under_max = quantize_bits(bits, t, "max")
    errors = stored_errors(bits, packed, codes, t).astype(np.float64)
    return _measured(errors, under_max.max_errors, under_max.energies, t)


def bf16_error(bits: NDArray[np.uint16], found: NDArray[np.uint16]) -> ClassError:
    """Of BF16 patterns beside those that they should be, of the same shape."""
    wanted, values = (
        (each.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for each in (bits, found)
    )
    return ClassError(float(np.square(values - wanted).sum()), float(np.square(wanted).sum()))


def _measured(
    errors: NDArray[np.float64],
    plain: NDArray[np.floating],
    energies: NDArray[np.floating],
    unit: float,
) -> Measured:
    # A comparison that NaN makes false must not pass.
    worse = errors.size - int((errors <= plain * _TOLERANCE).sum())
    energy = float(energies.sum(dtype=np.float64))
    error = ClassError(float(errors.sum()) * unit * unit, energy * unit * unit)
    return Measured(error, errors.size, worse)

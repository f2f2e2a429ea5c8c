"""Squared error of each group of a stored NVFP4 matrix against the weights it was made from."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from hy3.kernels.dispatch import operation
from hy3.nvfp4.codec import (
    E2M1_VALUES,
    GROUP_SIZE,
    decode_e2m1,
    decode_e4m3,
    unpack_codes,
)
from hy3.nvfp4.scales import sum_group


@operation
def stored_errors(
    bits: NDArray[np.uint16], packed: NDArray[np.uint8], scales: NDArray[np.uint8], t: float
) -> NDArray[np.float32]:
    """Errors [out, in / 16] in units of t squared, summed in the order of ``hy3.nvfp4.scales``.

    Args:
        bits: BF16 patterns of the weights [out, in]
        packed: [out, in / 2]
        scales: E4M3 patterns [out, in / 16]
        t: the tensor scale, a multiplier
    """
    weight = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float()
    x = (weight * (1.0 / t)).unflatten(-1, (-1, GROUP_SIZE))
    values = decode_e2m1(unpack_codes(torch.from_numpy(packed))).unflatten(-1, (-1, GROUP_SIZE))
    difference = x - values * decode_e4m3(torch.from_numpy(scales)).unsqueeze(-1)
    errors: NDArray[np.float32] = sum_group(difference.square()).numpy()
    return errors


@stored_errors.twin("numba", when=lambda bits, packed, scales, t: True)
def stored_errors_cpu(
    bits: NDArray[np.uint16], packed: NDArray[np.uint8], scales: NDArray[np.uint8], t: float
) -> NDArray[np.float32]:
    """The same sums in one pass over the bytes."""
    errors = np.empty(scales.shape, np.float32)
    _group_errors(
        np.ascontiguousarray(bits).reshape(-1, GROUP_SIZE),
        np.ascontiguousarray(packed).reshape(-1, GROUP_SIZE // 2),
        np.ascontiguousarray(scales).reshape(-1),
        np.float32(1.0 / t),
        _SIGNED_E2M1,
        _SIGNED_E4M3,
        errors.reshape(-1),
    )
    return errors


_SIGNED_E2M1 = np.concatenate([E2M1_VALUES.numpy(), -E2M1_VALUES.numpy()])
_SIGNED_E4M3 = decode_e4m3(torch.arange(256, dtype=torch.uint8)).numpy()


@njit(cache=True, nogil=True)
def _group_errors(
    groups: Any, packed: Any, scales: Any, inverse_t: Any, values: Any, scale_values: Any, out: Any
) -> None:
    pattern = np.empty(1, np.uint32)
    weight = pattern.view(np.float32)
    for group in range(groups.shape[0]):
        scale = scale_values[scales[group]]
        total = np.float32(0)
        for i in range(GROUP_SIZE):
            code = (packed[group, i // 2] >> np.uint8(4 * (i % 2))) & np.uint8(15)
            pattern[0] = np.uint32(groups[group, i]) << np.uint32(16)
            difference = weight[0] * inverse_t - values[code] * scale
            total += difference * difference
        out[group] = total

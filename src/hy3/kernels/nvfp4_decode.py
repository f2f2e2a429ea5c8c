"""Packed NVFP4 to BF16 bits, with a count of the values that BF16 had to round."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from hy3.kernels.dispatch import operation
from hy3.nvfp4.codec import GROUP_SIZE, decode_e2m1, unpack_codes

_SIGNED_VALUES = decode_e2m1(torch.arange(16, dtype=torch.uint8)).numpy()


@operation
def decode_to_bf16(
    packed: NDArray[np.uint8], steps: NDArray[np.float32]
) -> tuple[NDArray[np.uint16], int]:
    """BF16 patterns [out, in] of value(code) * step, and how many products were not exact.

    Args:
        packed: [out, in / 2]
        steps: finite fp32 [out, in / 16], each group's scale times the tensor scale
    """
    values = decode_e2m1(unpack_codes(torch.from_numpy(packed))).unflatten(-1, (-1, GROUP_SIZE))
    exact = (values * torch.from_numpy(steps).unsqueeze(-1)).flatten(-2)
    rounded = exact.bfloat16()
    return rounded.view(torch.int16).numpy().view(np.uint16), int((rounded.float() != exact).sum())


@decode_to_bf16.twin("numba", when=lambda packed, steps: True)
def _decode_to_bf16_numba(
    packed: NDArray[np.uint8], steps: NDArray[np.float32]
) -> tuple[NDArray[np.uint16], int]:
    bits = np.empty((packed.shape[0], packed.shape[1] * 2), np.uint16)
    rounded = _decode_groups(
        np.ascontiguousarray(packed).reshape(-1, GROUP_SIZE // 2),
        np.ascontiguousarray(steps).reshape(-1),
        _SIGNED_VALUES,
        bits.reshape(-1, GROUP_SIZE),
    )
    return bits, int(rounded)


@njit(cache=True, nogil=True)
def _decode_groups(
    packed: NDArray[np.uint8],
    steps: NDArray[np.float32],
    values: NDArray[np.float32],
    bits: NDArray[np.uint16],
) -> int:
    rounded = 0
    products = np.empty(16, np.float32)
    patterns = products.view(np.uint32)
    halves = np.empty(16, np.uint16)
    for group in range(packed.shape[0]):
        for code in range(16):
            products[code] = values[code] * steps[group]
            pattern = patterns[code]
            # To nearest, a tie to even.
            lift = np.uint32(0x7FFF) + ((pattern >> np.uint32(16)) & np.uint32(1))
            halves[code] = np.uint16((pattern + lift) >> np.uint32(16))
        for i in range(8):
            low, high = packed[group, i] & 15, packed[group, i] >> 4
            bits[group, 2 * i] = halves[low]
            bits[group, 2 * i + 1] = halves[high]
            rounded += (patterns[low] & np.uint32(0xFFFF)) != 0
            rounded += (patterns[high] & np.uint32(0xFFFF)) != 0
    return rounded

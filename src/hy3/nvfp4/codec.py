"""The two small float formats of NVFP4, as bit patterns in ``uint8`` tensors.

E2M1 (the 4-bit values): ``code = sign << 3 | index`` into 0, 0.5, 1, 1.5, 2, 3, 4, 6.
E4M3FN (the group scales): 1-4-3 bits, bias 7, largest finite value 448 (0x7E), 0x7F is NaN.
Both round to nearest, a tie to the even code, and saturate. A byte of packed values holds the
even column in its low nibble and the odd column in its high one.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP_SIZE = 16
E4M3_MAX_CODE = 0x7E
E4M3_NAN = 0x7F

E2M1_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def _e4m3_magnitude(code: int) -> float:
    exponent, mantissa = code >> 3, code & 7
    if exponent == 0:
        return mantissa * 2.0**-9
    return (8 + mantissa) * 2.0 ** (exponent - 10)


# Finite magnitudes, ascending: index == code.
E4M3_VALUES = torch.tensor([_e4m3_magnitude(code) for code in range(E4M3_MAX_CODE + 1)])


def _nearest_index(magnitude: Tensor, values: Tensor) -> Tensor:
    """Index of the nearest entry of ``values`` (ascending), a tie to the even index."""
    values = values.to(magnitude.device)
    midpoints = (values[1:] + values[:-1]) / 2  # exact: neighbours differ in few bits
    below = torch.searchsorted(midpoints, magnitude.contiguous())
    tie = magnitude == midpoints[below.clamp(max=len(midpoints) - 1)]
    return below + (tie & (below % 2 == 1))


def encode_e2m1(x: Tensor) -> Tensor:
    """fp32 -> codes 0..15 (uint8), same shape. Negative values that round to zero get code 8;
    -0.0 itself gets code 0, as in compressed-tensors. NaN is not allowed."""
    index = _nearest_index(x.abs(), E2M1_VALUES)
    return (index + 8 * (x < 0)).to(torch.uint8)


def decode_e2m1(codes: Tensor) -> Tensor:
    """Codes 0..15 -> fp32, same shape; code 8 is -0.0."""
    magnitude = E2M1_VALUES.to(codes.device)[(codes & 7).long()]
    return torch.where(codes >= 8, -magnitude, magnitude)


def pack_codes(codes: Tensor) -> Tensor:
    """uint8 codes [..., n] with even n -> uint8 [..., n / 2]."""
    assert codes.shape[-1] % 2 == 0
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_codes(packed: Tensor) -> Tensor:
    """uint8 [..., n / 2] -> uint8 codes [..., n]."""
    return torch.stack((packed & 0x0F, packed >> 4), dim=-1).flatten(-2)


def encode_e4m3(x: Tensor) -> Tensor:
    """fp32 -> E4M3FN bit patterns (uint8); beyond 448 saturates, NaN stays NaN."""
    code = _nearest_index(x.abs(), E4M3_VALUES)
    code = torch.where(x.isnan(), E4M3_NAN, code)
    return (code + 128 * torch.signbit(x)).to(torch.uint8)


def decode_e4m3(codes: Tensor) -> Tensor:
    """E4M3FN bit patterns (uint8) -> fp32, same shape."""
    magnitude_code = (codes & 0x7F).long()
    magnitude = E4M3_VALUES.to(codes.device)[magnitude_code.clamp(max=E4M3_MAX_CODE)]
    magnitude = torch.where(magnitude_code == E4M3_NAN, torch.nan, magnitude)
    return torch.where(codes >= 128, -magnitude, magnitude)

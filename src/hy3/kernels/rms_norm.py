"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from hy3.kernels.dispatch import operation


@operation
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / rms(x) * weight`` over the last dimension.

    The mean square and the division are fp32; the quotient is rounded to ``x.dtype`` before the
    weight is applied, as transformers does.
    """
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)

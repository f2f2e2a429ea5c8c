"""A bias-free linear layer, optionally adding a residual."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from hy3.kernels.dispatch import operation


@operation
def linear(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> Tensor:
    """``x @ weight.T`` rounded to ``x.dtype``, then ``residual`` added in ``x.dtype``.

    Args:
        x: [tokens, in]
        weight: [out, in]
        residual: [tokens, out]
    """
    product = F.linear(x, weight)
    return product if residual is None else residual + product

"""The language-model head: hidden states to fp32 logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hy3.kernels.dispatch import operation

# Rows of the head widened at a time: bounds the fp32 copy to 64 MB at a hidden size of 4096.
VOCAB_CHUNK = 4096


@operation
def head_logits(hidden: Tensor, weight: Tensor, wide: bool) -> Tensor:
    """Logits [tokens, vocab] in fp32.

    Args:
        hidden: [tokens, hidden]
        weight: [vocab, hidden]
        wide: products and sums in fp32 without a final rounding (``enable_lm_head_fp32``);
            otherwise rounded to the model dtype before they are widened
    """
    if not wide or hidden.dtype == torch.float32:
        return F.linear(hidden, weight).float()
    x = hidden.float()
    return torch.cat([F.linear(x, rows.float()) for rows in weight.split(VOCAB_CHUNK)], dim=-1)

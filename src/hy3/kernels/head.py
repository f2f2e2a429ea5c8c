"""The language-model head: hidden states to fp32 logits."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit
from torch import Tensor

from hy3.kernels import cpu
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


def _cpu_serves(hidden: Tensor, weight: Tensor, wide: bool) -> bool:
    return cpu.serves(hidden) and cpu.tileable(weight)


@head_logits.twin("numba", when=_cpu_serves)
def head_logits_cpu(hidden: Tensor, weight: Tensor, wide: bool) -> Tensor:
    """fp32 sums in one fixed order per row, without a wide copy of the head."""
    hidden = hidden.contiguous()
    out = torch.empty(hidden.shape[0], weight.shape[0], dtype=torch.float32)
    _head_rows(hidden.data_ptr(), weight.data_ptr(), out.data_ptr(), *hidden.shape, out.shape[1])
    return out if wide else out.bfloat16().float()


@njit(cache=True, nogil=True)
def _head_rows(hidden: int, weight: int, out: int, rows: int, size: int, vocab: int) -> None:
    x = np.empty((rows, size), np.float32)
    cpu.widen_rows(cpu.bf16_array(hidden, rows, size), x)
    cpu.project(weight, size, x, cpu.f32_array(out, rows, vocab))

"""``Batch``: the new tokens of several sequences as one flat row list."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """T rows of B sequences; tensors lie on the model's device and are contiguous.

    Row t of a sequence attends to the positions before it in the sequence's blocks and to
    itself; its keys and values are written to ``slots[t]`` before attention reads.
    """

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    query_starts: Tensor  # [B + 1] int32: sequence b owns rows query_starts[b]:query_starts[b + 1]
    context_lengths: Tensor  # [B] int32: cached positions after this step, the new rows included
    block_tables: Tensor  # [B, max_blocks] int32 block ids, padded with 0
    slots: Tensor  # [T] int64: block id * block_size + offset of row t; -1 is not written

"""Batches and pools for tests that call the model without an engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hy3.model.decoder import Batch, Hy3Model, KvPool


def make_batch(
    parts: Sequence[tuple[int, Sequence[int]]], tables: Sequence[Sequence[int]], block_size: int
) -> Batch:
    """One batch; ``parts[b]`` is (positions already cached, new token ids) of sequence b."""
    token_ids, positions, slots, starts, contexts = [], [], [], [0], []
    for (past, new), table in zip(parts, tables, strict=True):
        for offset, token in enumerate(new):
            position = past + offset
            token_ids.append(token)
            positions.append(position)
            slots.append(table[position // block_size] * block_size + position % block_size)
        starts.append(len(token_ids))
        contexts.append(past + len(new))
    width = max(len(table) for table in tables)
    padded = [[*table, *[0] * (width - len(table))] for table in tables]
    return Batch(
        token_ids=torch.tensor(token_ids),
        positions=torch.tensor(positions),
        query_starts=torch.tensor(starts, dtype=torch.int32),
        context_lengths=torch.tensor(contexts, dtype=torch.int32),
        block_tables=torch.tensor(padded, dtype=torch.int32),
        slots=torch.tensor(slots),
    )


def run_chunks(
    model: Hy3Model, pool: KvPool, tokens: Sequence[int], cuts: Sequence[int], table: Sequence[int]
) -> Tensor:
    """Hidden states of one sequence fed in pieces ending at ``cuts`` and at its end."""
    states, past = [], 0
    for stop in (*cuts, len(tokens)):
        batch = make_batch([(past, tokens[past:stop])], [table], pool.block_size)
        states.append(model.forward(batch, pool))
        past = stop
    return torch.cat(states)

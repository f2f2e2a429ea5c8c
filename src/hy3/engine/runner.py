"""``Runner``: turns spans of sequences into one flat ``Batch`` and runs the model over it."""

from __future__ import annotations

from collections.abc import Sequence as Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from hy3.engine.config import EngineConfig
from hy3.engine.scheduler import Chunk
from hy3.engine.sequence import Sequence
from hy3.model.decoder import Batch, Hy3Model

KV_DTYPES = {
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp8": torch.float8_e4m3fn,
}


@dataclass(frozen=True)
class Span:
    """Positions ``start`` to ``end`` of a sequence."""

    sequence: Sequence
    start: int
    end: int

    @property
    def length(self) -> int:
        """Rows in a batch."""
        return self.end - self.start


class Runner:
    """Owns the cache's tensors; knows which rows of a pass belong to whom."""

    def __init__(self, model: Hy3Model, config: EngineConfig) -> None:
        self.model = model
        self.block_size = config.block_size
        self.pool = model.new_pool(config.num_blocks, config.block_size, KV_DTYPES[config.kv_dtype])

    def forward(self, chunks: Sized[Chunk]) -> Tensor:
        """Target pass over known tokens and drafts: hidden states, [rows, hidden]."""
        spans, tokens = [], []
        for chunk in chunks:
            start, known_end = chunk.start, chunk.start + chunk.num_known
            spans.append(Span(chunk.sequence, start, start + chunk.num_rows))
            tokens.append([*chunk.sequence.token_ids[start:known_end], *chunk.drafts])
        return self.model.forward(self._batch(spans, tokens), self.pool)

    def logits(self, chunks: Sized[Chunk], hidden: Tensor) -> Tensor:
        """Logits of the sampling rows: per sampling chunk its last known token and its drafts."""
        rows: list[int] = []
        end = 0
        for chunk in chunks:
            end += chunk.num_rows
            if chunk.samples:
                rows += range(end - 1 - len(chunk.drafts), end)
        return self.model.logits(take_rows(hidden, rows))

    def draft(self, spans: Sized[Span], following: Sized[Sized[int]], hidden: Tensor) -> Tensor:
        """MTP pass over ``spans``, given the tokens that follow each position: [rows, hidden]."""
        batch = self._batch(spans, following)
        return self.model.draft(batch, batch.token_ids, hidden, self.pool)

    def argmax(self, hidden: Tensor) -> list[int]:
        """The most likely token of each row."""
        tokens: list[int] = self.model.logits(hidden).argmax(-1).tolist()
        return tokens

    def _batch(self, spans: Sized[Span], tokens: Sized[Sized[int]]) -> Batch:
        """One flat batch; ``tokens`` holds one token per position of each span.

        Built in plain lists, which cost less than array calls for the few rows of a decode, and
        moved to the device in four pieces.
        """
        size = self.block_size
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts, lengths, tables = [0], [], []
        width = max(-(-span.end // size) for span in spans)
        for span, part in zip(spans, tokens, strict=True):
            blocks = span.sequence.blocks
            covered = range(span.start, span.end)
            token_ids += part
            positions += covered
            slots += [blocks[position // size] * size + position % size for position in covered]
            starts.append(len(positions))
            lengths.append(span.end)
            tables.append([*blocks[:width], *[0] * (width - len(blocks))])
        rows = self._tensor([token_ids, positions, slots], np.int64)
        return Batch(
            token_ids=rows[0],
            positions=rows[1],
            slots=rows[2],
            query_starts=self._tensor(starts, np.int32),
            context_lengths=self._tensor(lengths, np.int32),
            block_tables=self._tensor(tables, np.int32),
        )

    def _tensor(self, values: list[Any], dtype: DTypeLike) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=dtype)).to(self.model.device)


def take_rows(hidden: Tensor, rows: list[int]) -> Tensor:
    """``hidden`` at ``rows``, which rise; the same tensor if they are all of it."""
    if len(rows) == hidden.shape[0]:
        return hidden
    return hidden[torch.tensor(rows, dtype=torch.int64, device=hidden.device)]

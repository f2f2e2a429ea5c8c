"""``Runner``: turns spans of sequences into one flat ``Batch`` and runs the model over it."""

from __future__ import annotations

from collections.abc import Sequence as Sized
from dataclasses import dataclass

import numpy as np
import torch
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
        if len(rows) < end:
            hidden = hidden[torch.tensor(rows, dtype=torch.int64, device=hidden.device)]
        return self.model.logits(hidden)

    def draft(self, spans: Sized[Span], following: Sized[Sized[int]], hidden: Tensor) -> Tensor:
        """MTP pass over ``spans``, given the tokens that follow each position: [rows, hidden]."""
        batch = self._batch(spans, following)
        return self.model.draft(batch, batch.token_ids, hidden, self.pool)

    def argmax(self, hidden: Tensor) -> list[int]:
        """The most likely token of each row."""
        tokens: list[int] = self.model.logits(hidden).argmax(-1).tolist()
        return tokens

    def _batch(self, spans: Sized[Span], tokens: Sized[Sized[int]]) -> Batch:
        """One flat batch; ``tokens`` holds one token per position of each span."""
        count = len(spans)
        starts = np.zeros(count + 1, dtype=np.int32)
        lengths = np.empty(count, dtype=np.int32)
        widths = [-(-span.end // self.block_size) for span in spans]
        tables = np.zeros((count, max(widths)), dtype=np.int32)
        for index, span in enumerate(spans):
            starts[index + 1] = starts[index] + span.length
            lengths[index] = span.end
            tables[index, : widths[index]] = span.sequence.blocks[: widths[index]]
        token_ids = np.concatenate([np.asarray(part, dtype=np.int64) for part in tokens])
        positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
        owners = np.repeat(np.arange(count), np.diff(starts))
        blocks = tables[owners, positions // self.block_size].astype(np.int64)
        slots = blocks * self.block_size + positions % self.block_size
        arrays = (token_ids, positions, starts, lengths, tables, slots)
        return Batch(*(torch.from_numpy(array).to(self.model.device) for array in arrays))

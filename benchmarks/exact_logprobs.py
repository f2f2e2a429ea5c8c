"""Log-probabilities of whole documents in fp32, by our own model: what BF16 engines are near to."""

from __future__ import annotations

from pathlib import Path

import torch

from hy3.model.decoder import load_model


def exact_logprobs(folder: Path, documents: list[list[int]]) -> list[float]:
    """Of every token but each document's first given those before it, document after document."""
    model = load_model(folder, dtype=torch.float32)
    logprobs: list[float] = []
    for ids in documents:
        tokens = torch.tensor(ids)
        hidden = model.forward_full(tokens)[:-1]
        rows = model.logits(hidden).double().log_softmax(-1)
        logprobs += rows.gather(1, tokens[1:, None])[:, 0].tolist()
    return logprobs

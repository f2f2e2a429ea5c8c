"""Time of one decode step of the model alone: oracles against CPU kernels.

A step is what the engine asks of the model for each token: the trunk over one batch of decoding
rows, the logits of all rows and their argmax. Rows are one stream, six streams, one stream that
verifies one draft, and six that do. The MTP pass is timed on its own.

    python benchmarks/decode_step.py [--model models/hy3-tiny] [--context 256]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hy3.kernels import dispatch
from hy3.model.decoder import Batch, Hy3Model, load_model
from record import ROOT, record

BLOCK_SIZE = 16
STEPS = 200
MAX_SECONDS = 3.0  # of one measurement; at least five steps are taken
WARM_UP = 3
SHAPES = {"1 stream": (1, 1), "6 streams": (6, 1), "1 stream + draft": (1, 2), "6 + drafts": (6, 2)}


def make_batch(model: Hy3Model, streams: int, rows: int, context: int) -> Batch:
    """``streams`` sequences of ``context`` positions, of which the last ``rows`` are new."""
    width = -(-context // BLOCK_SIZE)
    tables = torch.arange(streams * width, dtype=torch.int32).view(streams, width)
    positions = torch.arange(context - rows, context).repeat(streams)
    owners = torch.arange(streams).repeat_interleave(rows)
    blocks = tables[owners, positions // BLOCK_SIZE].long()
    return Batch(
        token_ids=torch.arange(streams * rows) % model.config.vocab_size,
        positions=positions,
        query_starts=torch.arange(0, streams * rows + 1, rows, dtype=torch.int32),
        context_lengths=torch.full((streams,), context, dtype=torch.int32),
        block_tables=tables,
        slots=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
    )


def time_ms(step: Callable[[], Any]) -> dict[str, float]:
    """Wall and processor time of repeated steps; the minimum is the least disturbed."""
    for _ in range(WARM_UP):
        step()
    wall: list[float] = []
    cpu: list[float] = []
    while len(wall) < STEPS and (len(wall) < 5 or sum(wall) < 1e3 * MAX_SECONDS):
        start, cpu_start = time.perf_counter(), time.process_time()
        step()
        wall.append(1e3 * (time.perf_counter() - start))
        cpu.append(1e3 * (time.process_time() - cpu_start))
    return {
        "wall_median_ms": round(statistics.median(wall), 3),
        "wall_min_ms": round(min(wall), 3),
        "cpu_median_ms": round(statistics.median(cpu), 3),
        "cpu_min_ms": round(min(cpu), 3),
    }


def measure(model: Hy3Model, context: int) -> list[dict[str, Any]]:
    """One entry per batch shape, for the implementation that dispatch now allows."""
    found = []
    for name, (streams, rows) in SHAPES.items():
        batch = make_batch(model, streams, rows, context)
        pool = model.new_pool(batch.block_tables.numel(), BLOCK_SIZE)
        hidden = model.forward(batch, pool)

        def step(batch: Batch = batch, pool: Any = pool) -> None:
            model.logits(model.forward(batch, pool)).argmax(-1).tolist()

        def draft(batch: Batch = batch, pool: Any = pool, hidden: Any = hidden) -> None:
            model.logits(model.draft(batch, batch.token_ids, hidden, pool)).argmax(-1).tolist()

        entry = {"batch": name, "rows": streams * rows, "step": time_ms(step)}
        found.append(entry | {"draft": time_ms(draft)})
    return found


def main() -> None:
    """Measure both implementations in one process and record them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "hy3-tiny")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    load = os.getloadavg()[0]
    model = load_model(options.model)
    runs = {}
    for name, allowed in (("torch", False), ("kernels", True)):
        dispatch.TWINS_ALLOWED = allowed
        runs[name] = measure(model, options.context)
        for entry in runs[name]:
            print(name, entry["batch"], entry["step"], "draft", entry["draft"])
    setting = {
        "model": options.model.name,
        "context": options.context,
        "threads": options.threads,
        "load_average_before": load,
    }
    print(record("decode_step", {"setting": setting, "runs": runs}))


if __name__ == "__main__":
    main()

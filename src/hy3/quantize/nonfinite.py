"""NaN and infinities in a tensor: none may reach an encoder, and a report says how many."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from hy3.checkpoint.index import Checkpoint
from hy3.checkpoint.reader import TensorReader
from hy3.kernels.scale_search import largest_magnitude
from hy3.quantize.progress import Advance, Progress
from hy3.quantize.threads import Stopped, finished_shards

_CHUNK_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Nonfinite:
    """How many values of a tensor are not finite."""

    nans: int = 0
    infinities: int = 0

    def __str__(self) -> str:
        return f"{self.nans} NaN and {self.infinities} infinite values"


def all_finite(chunk: memoryview, dtype: str) -> bool:
    """Whether a piece of a tensor is finite; dtypes other than BF16 and F32 are taken to be."""
    if dtype == "BF16":
        return bool(np.isfinite(largest_magnitude(np.frombuffer(chunk, np.uint16))))
    return dtype != "F32" or bool(np.isfinite(np.frombuffer(chunk, np.float32)).all())


def count_nonfinite(chunks: Iterable[memoryview], dtype: str) -> Nonfinite:
    """Over the pieces of a BF16 or F32 tensor."""
    nans = infinities = 0
    for chunk in chunks:
        if dtype == "BF16":
            values = (np.frombuffer(chunk, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(chunk, np.float32)
        nans += int(np.isnan(values).sum())
        infinities += int(np.isinf(values).sum())
    return Nonfinite(nans, infinities)


def find_nonfinite(
    checkpoint: Checkpoint, workers: int, progress: Progress
) -> dict[str, Nonfinite]:
    """Every tensor with NaN or infinity, in order of names; reads the whole checkpoint once."""
    stop = threading.Event()
    found: dict[str, Nonfinite] = {}
    with (
        progress("look for NaN", checkpoint.total_bytes) as advance,
        TensorReader(checkpoint, once=True) as reader,
    ):

        def scan(shard: str) -> dict[str, Nonfinite]:
            return _scan(reader, shard, stop, advance)

        with closing(finished_shards(scan, checkpoint.headers, workers, stop)) as results:
            for _, each in results:
                found |= each
    return dict(sorted(found.items()))


def _scan(
    reader: TensorReader, shard: str, stop: threading.Event, advance: Advance
) -> dict[str, Nonfinite]:
    found = {}
    for name, info in reader.checkpoint.headers[shard].tensors.items():
        finite = True
        for chunk in reader.chunks(name, _CHUNK_BYTES):
            if stop.is_set():
                raise Stopped
            finite = finite and all_finite(chunk, info.dtype)
            advance(chunk.nbytes)
        if not finite:
            found[name] = count_nonfinite(reader.chunks(name, _CHUNK_BYTES), info.dtype)
    return found

"""One shard, from the first byte of its source to the rename of its output.

Bytes pass once, in file order: read, hashed, packed or copied, hashed, written. In memory are one
weight and what it becomes, or one chunk of a copy.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hy3.checkpoint.file_hash import FileHash
from hy3.checkpoint.header import TensorInfo, read_head
from hy3.checkpoint.reader import TensorReader
from hy3.checkpoint.resume import FinishedShard, stamp_of
from hy3.checkpoint.writer import ShardWriter
from hy3.errors import InputError
from hy3.kernels.scale_search import largest_magnitude, quantize_bits
from hy3.nvfp4.scales import tensor_scale
from hy3.quantize.plan import Plan, Step
from hy3.quantize.progress import Advance
from hy3.quantize.threads import Stopped

CHUNK_BYTES = 4 * 2**20


class ShardStreamer:
    """Streams shards of one plan; threads may share it."""

    def __init__(self, plan: Plan, reader: TensorReader, out: Path, advance: Advance) -> None:
        self.plan, self.reader, self.out = plan, reader, out
        self.advance = advance
        self.stop = threading.Event()
        # tensor -> largest magnitude; so that the second of a pair need not read the first again
        self._largest: dict[str, float] = {}

    def run(self, shard: str) -> FinishedShard:
        """Write one shard durably; its errors are summed in data order, so any thread may."""
        header = self.plan.checkpoint.headers[shard]
        steps = self.plan.shards[shard]
        specs = [spec for step in steps for spec in step.outputs]
        digest = hashlib.sha256(read_head(header))
        errors: dict[str, tuple[float, float, float]] = {}
        with ShardWriter(self.out / shard, specs, header.metadata | {"format": "pt"}) as writer:
            for step in steps:
                if step.quantized:
                    sums = self._pack(step, digest, writer)
                    before = errors.get(step.label, (0.0, 0.0, 0.0))
                    errors[step.label] = _add(before, sums)
                else:
                    self._copy(step.source, digest, writer)
            check_unchanged(self.plan, shard)
            output_hash = writer.finish()
        stamp = stamp_of(self.out / shard)
        return FinishedShard(
            source=FileHash(digest.hexdigest(), header.file_bytes),
            output=FileHash(output_hash, stamp.size_bytes),
            stamp=stamp,
            errors=errors,
        )

    def _copy(self, info: TensorInfo, digest: Any, writer: ShardWriter) -> None:
        for chunk in self._chunks(info.name):
            self._check_finite(info, chunk)
            digest.update(chunk)
            writer.write_chunk(chunk)
            self.advance(chunk.nbytes)

    def _pack(self, step: Step, digest: Any, writer: ShardWriter) -> tuple[float, float, float]:
        """Write one weight's three tensors; returns its three sums in the weights' own units."""
        if self.stop.is_set():
            raise Stopped
        bits = self.reader.array(step.source.name)
        digest.update(bits)
        t = self._tensor_scale(step, largest_magnitude(bits))
        result = quantize_bits(bits, t, self.plan.parameters.scales)
        packed, scales, divisor = step.outputs
        writer.write(packed.name, result.packed)
        writer.write(scales.name, result.scales)
        writer.write(divisor.name, np.array([1.0 / t], np.float32))
        self.advance(step.source.nbytes)
        error, under_max, weight = (
            float(sums.sum(dtype=np.float64)) * t * t
            for sums in (result.errors, result.max_errors, result.energies)
        )
        return error, under_max, weight

    def _tensor_scale(self, step: Step, largest: float) -> float:
        """t of the weight, from the joint maximum where gate and up share it."""
        self._largest[step.source.name] = self._finite(step.source.name, largest)
        if step.partner is None:
            return tensor_scale(largest)
        return tensor_scale(max(largest, self._largest_of(step.partner)))

    def _largest_of(self, name: str) -> float:
        if name not in self._largest:
            chunks = (np.frombuffer(chunk, np.uint16) for chunk in self._chunks(name))
            largest = np.max([largest_magnitude(chunk) for chunk in chunks], initial=0.0)
            self._largest[name] = self._finite(name, float(largest))
        return self._largest[name]

    def _chunks(self, name: str) -> Iterator[memoryview]:
        for chunk in self.reader.chunks(name, CHUNK_BYTES):
            if self.stop.is_set():
                raise Stopped
            yield chunk

    def _check_finite(self, info: TensorInfo, chunk: memoryview) -> None:
        if info.dtype == "BF16":
            self._finite(info.name, largest_magnitude(np.frombuffer(chunk, np.uint16)))
        elif info.dtype == "F32" and not np.isfinite(np.frombuffer(chunk, np.float32)).all():
            self._finite(info.name, float("nan"))

    def _finite(self, name: str, largest: float) -> float:
        if np.isfinite(largest):
            return largest
        raise InputError(
            "holds NaN or infinity",
            hint="the checkpoint is damaged: fetch the shard again",
            where=f"{self.plan.checkpoint.path(name)}: tensor {name!r}",
        )


def check_unchanged(plan: Plan, name: str) -> None:
    """InputError when a file of the source no longer looks as it did when it was planned."""
    path = plan.checkpoint.folder / name
    try:
        changed = stamp_of(path) != plan.stamps[name]
    except OSError:
        changed = True
    if changed:
        raise InputError(
            "changed while it was being quantized",
            hint="leave the source alone and quantize it again into an empty folder",
            where=str(path),
        )


def _add(
    one: tuple[float, float, float], other: tuple[float, float, float]
) -> tuple[float, float, float]:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]

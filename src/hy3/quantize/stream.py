"""One shard, from the first byte of its source to the rename of its output.

Bytes pass once, in file order: read, hashed, packed or copied, hashed, written. The next piece is
read and the last ones go to the disk meanwhile. In memory are two weights and what one becomes, or
two chunks of a copy.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hy3.checkpoint.file_hash import FileHash
from hy3.checkpoint.writer import ShardWriter
from hy3.errors import InputError
from hy3.kernels.scale_search import largest_magnitude
from hy3.kernels.scale_search_device import CPU, Device
from hy3.quantize.encode import encode
from hy3.quantize.journal import FinishedTensor, Journal, journal_path
from hy3.quantize.nonfinite import all_finite, count_nonfinite
from hy3.quantize.plan import Plan, Step
from hy3.quantize.progress import Meter
from hy3.quantize.read_ahead import Piece, ReadAhead, pieces_of
from hy3.quantize.resume import FinishedShard, stamp_of
from hy3.quantize.shard_source import HeldShards
from hy3.quantize.stats import StatsByKey, WeightStats
from hy3.quantize.threads import Stopped

CHUNK_BYTES = 4 * 2**20


@dataclass
class _Work:
    """A shard under way."""

    shard: str
    writer: ShardWriter
    journal: Journal
    digest: Any  # the running SHA-256 of the source's shard
    ahead: ReadAhead  # of the source's shard


class ShardStreamer:
    """Streams shards of one plan; threads may share it."""

    def __init__(
        self,
        plan: Plan,
        shards: HeldShards,
        out: Path,
        advance: Meter,
        resumed: Mapping[str, FinishedShard],
        device: Device = CPU,
    ) -> None:
        self.plan, self.shards, self.out = plan, shards, out
        self.device = device
        self.reader = shards.reader
        self.kept = plan.parameters.nonfinite_names
        self.advance = advance
        self.stop = threading.Event()
        # tensor -> largest magnitude, so that no tensor is read again for one that follows it
        self._largest: dict[str, float] = {}
        for finished in resumed.values():
            self._largest |= finished.largest

    def run(self, shard: str) -> FinishedShard:
        """Write one shard durably; its statistics are summed in data order, so any thread may."""
        header = self.plan.checkpoint.headers[shard]
        steps = self.plan.shards[shard]
        specs = [spec for step in steps for spec in step.outputs]
        metadata = header.metadata | {"format": "pt"}
        path = self.out / shard
        stats: StatsByKey = {}
        with (
            self.shards.hold(shard),
            Journal(journal_path(path)) as journal,
            ShardWriter(path, specs, metadata, resumable=True) as writer,
            ReadAhead(self.reader, [piece for step in steps for piece in _pieces(step)]) as ahead,
        ):
            digest = hashlib.sha256(self.reader.head(shard))
            work = _Work(shard, writer, journal, digest, ahead)
            for step in steps:
                finished = self._recover(step, work) or self._make(step, work)
                if finished.stats is not None:
                    before = stats.get(step.stats_key, WeightStats())
                    stats[step.stats_key] = before + finished.stats
            self.shards.source.check_unchanged(shard)
            output_hash = writer.finish()
        stamp = stamp_of(path)
        return FinishedShard(
            source=FileHash(work.digest.hexdigest(), header.file_bytes),
            output=FileHash(output_hash, stamp.size_bytes),
            stamp=stamp,
            stats=stats,
            largest=self._wanted_elsewhere(shard),
        )

    def _recover(self, step: Step, work: _Work) -> FinishedTensor | None:
        """What an earlier run has made of a tensor, if it and its source are still the same."""
        if not work.journal.found:
            return None
        finished, name = work.journal.found[0], step.source.name
        digest = work.digest.copy()
        for chunk in self._pieces(step, work):
            digest.update(chunk)
        same_source = digest.hexdigest() == finished.source_sha256
        if not same_source or not work.writer.recover(step.output_bytes, finished.output_sha256):
            work.journal.found.clear()
            return None
        work.digest = digest
        work.journal.confirm()
        if finished.largest is not None:
            self._largest[name] = finished.largest
        self.advance(step.source.nbytes, finished.stats)
        return finished

    def _make(self, step: Step, work: _Work) -> FinishedTensor:
        """Write what becomes of a tensor, and that it is finished."""
        stats = self._encode(step, work) if step.quantized else self._copy(step, work)
        finished = FinishedTensor(
            source_sha256=work.digest.hexdigest(),
            output_sha256=work.writer.sha256(),
            largest=self._largest[step.source.name] if step.quantized else None,
            stats=stats,
        )
        work.journal.append(finished)
        return finished

    def _wanted_elsewhere(self, shard: str) -> dict[str, float]:
        """Largest magnitudes that other shards need of this one: it need not be read for them."""
        places = self.plan.checkpoint.tensors
        return {
            step.source.name: self._largest[step.source.name]
            for step in self.plan.shards[shard]
            if any(places[name] != shard for name in step.sharing)
        }

    def _copy(self, step: Step, work: _Work) -> None:
        info = step.source
        for chunk in self._pieces(step, work):
            if info.name not in self.kept and not all_finite(chunk.data, info.dtype):
                raise self._nonfinite(info.name)
            work.digest.update(chunk)
            work.writer.write_chunk(chunk)
            self.advance(chunk.nbytes)

    def _encode(self, step: Step, work: _Work) -> WeightStats:
        (data,) = self._pieces(step, work)
        name, bits = step.source.name, data.view(np.uint16).reshape(step.source.shape)
        work.digest.update(bits)
        self._largest[name] = self._finite(name, largest_magnitude(bits))
        largest = max(self._largest_of(each, work) for each in (name, *step.sharing))
        encoded = encode(step.form, bits, largest, self.plan.parameters.scales, self.device)
        for spec, data in zip(step.outputs, encoded.tensors, strict=True):
            work.writer.write(spec.name, data)
        self.advance(step.source.nbytes, encoded.stats)
        return encoded.stats

    def _largest_of(self, name: str, work: _Work) -> float:
        if name in self._largest:
            return self._largest[name]
        info = self.plan.checkpoint.info(name)
        coming = work.ahead.peek(Piece(name, 0, info.nbytes))
        if coming is not None:
            self._largest[name] = self._finite(name, largest_magnitude(coming.view(np.uint16)))
            return self._largest[name]
        with self.shards.hold(self.plan.checkpoint.tensors[name]):
            # Whoever had it done before it was held has left its largest magnitude.
            if name in self._largest:
                return self._largest[name]
            chunks = (np.frombuffer(chunk, np.uint16) for chunk in self._chunks(name))
            largest = np.max([largest_magnitude(chunk) for chunk in chunks], initial=0.0)
            self._largest[name] = self._finite(name, float(largest))
        return self._largest[name]

    def _pieces(self, step: Step, work: _Work) -> Iterator[NDArray[np.uint8]]:
        """A tensor of the shard under way."""
        for piece in _pieces(step):
            if self.stop.is_set():
                raise Stopped
            yield work.ahead.take(piece)

    def _chunks(self, name: str) -> Iterator[memoryview]:
        for chunk in self.reader.chunks(name, CHUNK_BYTES):
            if self.stop.is_set():
                raise Stopped
            yield chunk

    def _finite(self, name: str, largest: float) -> float:
        if not np.isfinite(largest):
            raise self._nonfinite(name)
        return largest

    def _nonfinite(self, name: str) -> InputError:
        dtype = self.plan.checkpoint.info(name).dtype
        found = count_nonfinite(self.reader.chunks(name, CHUNK_BYTES), dtype)
        return InputError(
            f"holds {found}",
            hint="fetch the shard again; --keep-nonfinite copies such tensors as they are",
            where=f"{self.plan.checkpoint.path(name)}: tensor {name!r}",
        )


def _pieces(step: Step) -> list[Piece]:
    """What is to be encoded comes whole, what is copied in chunks."""
    return pieces_of(step.source, step.source.nbytes or 1 if step.quantized else CHUNK_BYTES)

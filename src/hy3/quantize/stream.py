"""One shard, from the first byte of its source to the rename of its output.

Bytes pass once, in file order: read, hashed, packed or copied, hashed, written. The next piece is
read and the last ones go to the disk meanwhile. In memory are two weights and what one becomes, or
two chunks of a copy. A weight that is quantized already is decoded between reading and packing.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
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
from hy3.quantize.plan import DROPPED, Plan, Step
from hy3.quantize.progress import Meter
from hy3.quantize.read_ahead import Piece, ReadAhead, pieces_of
from hy3.quantize.resume import FinishedShard, stamp_of
from hy3.quantize.shard_source import HeldShards
from hy3.quantize.stats import StatsByKey, WeightStats
from hy3.quantize.threads import Stopped
from hy3.stored.decode import decode
from hy3.stored.weight import StoredWeight

CHUNK_BYTES = 4 * 2**20
_MOST_EARLY = 2  # weights: k and v while it is q's turn

Halves = NDArray[np.uint16]
Decoded = tuple[Halves, int]  # BF16 patterns [out, in], and how many values were rounded


@dataclass
class _Work:
    """A shard under way."""

    writer: ShardWriter
    journal: Journal
    digest: Any  # the running SHA-256 of the source's shard
    ahead: ReadAhead  # of the source's shard
    early: dict[str, Decoded] = field(default_factory=dict)  # weights, before their turn


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
        rounded = 0
        with (
            self.shards.hold(shard),
            Journal(journal_path(path)) as journal,
            ShardWriter(path, specs, metadata, resumable=True) as writer,
            ReadAhead(self.reader, [piece for step in steps for piece in _pieces(step)]) as ahead,
        ):
            digest = hashlib.sha256(self.reader.head(shard))
            work = _Work(writer, journal, digest, ahead)
            for step in steps:
                finished = self._recover(step, work) or self._make(step, work)
                rounded += finished.rounded
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
            rounded=rounded,
        )

    def _recover(self, step: Step, work: _Work) -> FinishedTensor | None:
        """What an earlier run has made of a tensor, if it and its source are still the same."""
        if not work.journal.found:
            return None
        finished = work.journal.found[0]
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
            self._largest[step.weight.name] = finished.largest
        self.advance(step.source.nbytes, finished.stats)
        return finished

    def _make(self, step: Step, work: _Work) -> FinishedTensor:
        """Write what becomes of a tensor, and that it is finished."""
        stats, rounded = None, 0
        if step.whole:
            bits, rounded = self._read_weight(step, work)
            stats = self._write_weight(step, bits, work)
        else:
            self._copy(step, work)
        finished = FinishedTensor(
            source_sha256=work.digest.hexdigest(),
            output_sha256=work.writer.sha256(),
            largest=self._largest[step.weight.name] if step.quantized else None,
            stats=stats,
            rounded=rounded,
        )
        work.journal.append(finished)
        return finished

    def _wanted_elsewhere(self, shard: str) -> dict[str, float]:
        """Largest magnitudes that other shards need of this one: it need not be read for them."""
        return {
            step.weight.name: self._largest[step.weight.name]
            for step in self.plan.shards[shard]
            if any(self._shard_of(name) != shard for name in step.sharing)
        }

    def _shard_of(self, weight: str) -> str:
        return self.plan.checkpoint.tensors[self.plan.codes_of(weight)]

    def _copy(self, step: Step, work: _Work) -> None:
        """Chunk by chunk; of a tensor that is dropped only the source's digest takes note."""
        info = step.source
        for chunk in self._pieces(step, work):
            if step.form == DROPPED:
                work.digest.update(chunk)
                self.advance(chunk.nbytes)
                continue
            if info.name not in self.kept and not all_finite(chunk.data, info.dtype):
                raise self._nonfinite(info.name)
            work.digest.update(chunk)
            work.writer.write_chunk(chunk)
            self.advance(chunk.nbytes)

    def _read_weight(self, step: Step, work: _Work) -> Decoded:
        (data,) = self._pieces(step, work)
        work.digest.update(data)
        if step.stored is None:
            return data.view(np.uint16).reshape(step.source.shape), 0
        return work.early.pop(step.weight.name, None) or self._decode(step.stored, data)

    def _decode(self, stored: StoredWeight, codes: NDArray[np.uint8]) -> Decoded:
        with ExitStack() as held:
            for name in stored.names[1:]:
                held.enter_context(self.shards.hold(self.plan.checkpoint.tensors[name]))
            return decode(self.reader, stored, codes)

    def _write_weight(self, step: Step, bits: Halves, work: _Work) -> WeightStats | None:
        name = step.weight.name
        self._largest[name] = self._finite(name, largest_magnitude(bits))
        if not step.quantized:
            work.writer.write(name, bits)
            self.advance(step.source.nbytes)
            return None
        largest = max(self._largest_of(each, work) for each in (name, *step.sharing))
        encoded = encode(step.form, bits, largest, self.plan.parameters.scales, self.device)
        for spec, data in zip(step.outputs, encoded.tensors, strict=True):
            work.writer.write(spec.name, data)
        self.advance(step.source.nbytes, encoded.stats)
        return encoded.stats

    def _largest_of(self, name: str, work: _Work) -> float:
        if name in self._largest:
            return self._largest[name]
        codes, stored = self.plan.codes_of(name), self.plan.stored.get(name)
        piece = Piece(codes, 0, self.plan.checkpoint.info(codes).nbytes)
        # A weight to be decoded that follows in this shard is decoded once, and kept for its turn.
        early = stored is not None and len(work.early) < _MOST_EARLY
        coming = work.ahead.fetch(piece) if early else None if stored else work.ahead.peek(piece)
        if coming is not None:
            bits = coming.view(np.uint16)
            if stored:
                bits, _ = work.early[name] = self._decode(stored, coming)
            self._largest[name] = self._finite(name, largest_magnitude(bits))
            return self._largest[name]
        with self.shards.hold(self._shard_of(name)):
            # Whoever had it done before it was held has left its largest magnitude.
            if name in self._largest:
                return self._largest[name]
            self._largest[name] = self._finite(name, self._read_largest(name, stored))
        return self._largest[name]

    def _read_largest(self, name: str, stored: StoredWeight | None) -> float:
        """Of a weight that another shard holds or that lies behind in this one."""
        if stored:
            bits, _ = self._decode(stored, self.reader.read(stored.names[0]))
            return largest_magnitude(bits)
        chunks = (np.frombuffer(chunk, np.uint16) for chunk in self._chunks(name))
        return float(np.max([largest_magnitude(chunk) for chunk in chunks], initial=0.0))

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
        codes = self.plan.codes_of(name)
        if name in self.plan.stored:
            return InputError(
                "holds values that are not finite in BF16 once decoded",
                hint="fetch the shard again",
                where=f"{self.plan.checkpoint.path(codes)}: tensor {codes!r}",
            )
        dtype = self.plan.checkpoint.info(name).dtype
        found = count_nonfinite(self.reader.chunks(name, CHUNK_BYTES), dtype)
        # Of what is quantized already nothing can be kept but what its manifest names.
        kept = "" if self.plan.stored else "; --keep-nonfinite copies such tensors as they are"
        return InputError(
            f"holds {found}",
            hint=f"fetch the shard again{kept}",
            where=f"{self.plan.checkpoint.path(name)}: tensor {name!r}",
        )


def _pieces(step: Step) -> list[Piece]:
    """What is to be encoded comes whole, what is copied in chunks."""
    return pieces_of(step.source, step.source.nbytes or 1 if step.whole else CHUNK_BYTES)

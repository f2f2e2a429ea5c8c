"""``dequantize``: the BF16 twin of a quantized checkpoint, for engines that cannot read its forms.

Names, shards and assignment are those of the BF16 original. NVFP4 of ours loses nothing, because
its tensor scales are powers of two; elsewhere the values that had to be rounded are counted.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hy3.checkpoint.census import Census, take_census
from hy3.checkpoint.forms import BF16, INPUT_SCALES
from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.index import Checkpoint, open_checkpoint
from hy3.checkpoint.json_file import read_json_object
from hy3.checkpoint.model_config import CONFIG_NAME, parse_config
from hy3.checkpoint.reader import TensorReader
from hy3.checkpoint.writer import ShardWriter, write_file_durably
from hy3.errors import EnvironmentFault, InputError
from hy3.quantize.export import export_small_files
from hy3.quantize.output_folder import make_folder
from hy3.quantize.progress import Advance, Progress
from hy3.quantize.threads import Stopped, finished_shards
from hy3.stored.decode import decode
from hy3.stored.weight import StoredWeight, stored_weights

CHUNK_BYTES = 4 * 2**20


@dataclass(frozen=True)
class TwinPlan:
    """The twin's shards; an item is a tensor to copy or a weight to decode."""

    checkpoint: Checkpoint
    raw_config: dict[str, Any]
    shards: dict[str, list[TensorSpec | StoredWeight]]

    @property
    def output_bytes(self) -> int:
        """Tensor bytes to write."""
        return sum(_spec(item).nbytes for items in self.shards.values() for item in items)


@dataclass(frozen=True)
class Twin:
    """What was made."""

    weights: int  # decoded
    rounded_values: int  # that BF16 cannot hold exactly


def plan_twin(folder: Path) -> TwinPlan:
    """Check that ``folder`` is a whole quantized checkpoint and lay out its twin."""
    raw_config = read_json_object(folder / CONFIG_NAME)
    config = parse_config(raw_config, where=str(folder / CONFIG_NAME))
    checkpoint = open_checkpoint(folder)
    census = take_census(checkpoint, config)
    _check_source(folder, census)
    packed = stored_weights(config, census)
    unwritten = {name for weight in packed.values() for name in weight.names[1:]}
    shards: dict[str, list[TensorSpec | StoredWeight]] = {}
    for shard, header in checkpoint.headers.items():
        shards[shard] = [
            packed.get(name, info.spec)
            for name, info in header.tensors.items()
            if name not in unwritten and name.rpartition(".")[2] not in INPUT_SCALES
        ]
    return TwinPlan(checkpoint, raw_config, shards)


def dequantize(plan: TwinPlan, out: Path, workers: int, progress: Progress) -> Twin:
    """Write the twin into ``out``, which must be new or empty; config.json comes last."""
    _make_empty(out)
    with (
        progress("dequantize", plan.output_bytes) as advance,
        TensorReader(plan.checkpoint) as reader,
    ):
        writer = _TwinWriter(plan, reader, out, advance)
        workers = max(1, min(workers, len(plan.shards)))
        rounded = sum(
            count for _, count in finished_shards(writer.run, plan.shards, workers, writer.stop)
        )
    specs = {shard: [_spec(item) for item in items] for shard, items in plan.shards.items()}
    files = export_small_files(plan.checkpoint.folder, plan.raw_config, None, specs)
    for name in sorted(files, key=lambda name: name == CONFIG_NAME):
        write_file_durably(out / name, files[name])
    weights = sum(
        isinstance(item, StoredWeight) for items in plan.shards.values() for item in items
    )
    return Twin(weights, rounded)


class _TwinWriter:
    """Writes shards of one plan; threads may share it."""

    def __init__(self, plan: TwinPlan, reader: TensorReader, out: Path, advance: Advance) -> None:
        self.plan, self.reader, self.out = plan, reader, out
        self.advance = advance
        self.stop = threading.Event()

    def run(self, shard: str) -> int:
        """One shard, durably; returns how many of its values were rounded."""
        items = self.plan.shards[shard]
        metadata = self.plan.checkpoint.headers[shard].metadata | {"format": "pt"}
        specs = [_spec(item) for item in items]
        with ShardWriter(self.out / shard, specs, metadata) as writer:
            rounded = sum(self._write(item, writer) for item in items)
            writer.finish()
        return rounded

    def _write(self, item: TensorSpec | StoredWeight, writer: ShardWriter) -> int:
        if self.stop.is_set():
            raise Stopped
        if isinstance(item, StoredWeight):
            bits, rounded = decode(self.reader, item)
            writer.write(item.spec.name, bits)
            self.advance(bits.nbytes)
            return rounded
        for chunk in self.reader.chunks(item.name, CHUNK_BYTES):
            writer.write_chunk(chunk)
            self.advance(chunk.nbytes)
        return 0


def _spec(item: TensorSpec | StoredWeight) -> TensorSpec:
    return item.spec if isinstance(item, StoredWeight) else item


def _check_source(folder: Path, census: Census) -> None:
    if census.scheme == BF16:
        raise InputError(
            "holds bf16 weights", hint="dequantize reads NVFP4 and FP8", where=str(folder)
        )
    problems = [*census.missing, *census.unexpected, *(each.name for each in census.mismatched)]
    if problems:
        raise InputError(
            f"is not whole: {len(problems)} tensors are missing or strange, as {problems[0]!r}",
            hint="hy3 inspect lists them",
            where=str(folder),
        )


def _make_empty(out: Path) -> None:
    make_folder(out)
    try:
        strangers = sorted(os.listdir(out))
    except OSError as error:
        raise EnvironmentFault(
            f"cannot be used ({error.strerror})", hint="name another folder", where=str(out)
        ) from error
    if strangers:
        raise InputError(
            f"is not empty: it holds {strangers[0]!r}",
            hint="name a new or empty folder",
            where=str(out),
        )

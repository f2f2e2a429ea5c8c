"""``dequantize``: the BF16 twin of an NVFP4 checkpoint, for engines that cannot read NVFP4.

Names, shards and assignment are those of the BF16 original. Files of ours lose nothing, because
their tensor scales are powers of two; for others the values that had to be rounded are counted.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hy3.checkpoint.census import Census, take_census
from hy3.checkpoint.forms import BF16, INPUT_SCALES, MODELOPT_NVFP4, NVFP4_FORMS, parts_of
from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.index import Checkpoint, open_checkpoint
from hy3.checkpoint.json_file import read_json_object
from hy3.checkpoint.model_config import CONFIG_NAME, parse_config
from hy3.checkpoint.names import expected_tensors
from hy3.checkpoint.reader import TensorReader
from hy3.checkpoint.writer import ShardWriter, write_file_durably
from hy3.errors import EnvironmentFault, InputError
from hy3.kernels.nvfp4_decode import decode_to_bf16
from hy3.nvfp4.codec import E4M3_NAN, decode_e4m3
from hy3.quantize.export import export_small_files
from hy3.quantize.output_folder import make_folder
from hy3.quantize.progress import Advance, Progress
from hy3.quantize.threads import Stopped, finished_shards

CHUNK_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Packed:
    """One NVFP4 weight: its BF16 spec, its three tensors, and how the third is meant."""

    spec: TensorSpec
    codes: str
    scales: str
    tensor_scale: str
    divides: bool  # compressed-tensors stores a divisor, ModelOpt a multiplier


@dataclass(frozen=True)
class TwinPlan:
    """The twin's shards; an item is a tensor to copy or a weight to decode."""

    checkpoint: Checkpoint
    raw_config: dict[str, Any]
    shards: dict[str, list[TensorSpec | Packed]]

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
    """Check that ``folder`` is a whole NVFP4 checkpoint and lay out its twin."""
    raw_config = read_json_object(folder / CONFIG_NAME)
    config = parse_config(raw_config, where=str(folder / CONFIG_NAME))
    checkpoint = open_checkpoint(folder)
    census = take_census(checkpoint, config)
    _check_source(folder, census)
    packed: dict[str, Packed] = {}
    unwritten: set[str] = set()
    for name, spec in expected_tensors(config).items():
        form = census.forms[name]
        if form in NVFP4_FORMS:
            codes, scales, tensor_scale = (part.name for part in parts_of(spec, form))
            packed[codes] = Packed(spec, codes, scales, tensor_scale, form != MODELOPT_NVFP4)
            unwritten |= {scales, tensor_scale}
    shards: dict[str, list[TensorSpec | Packed]] = {}
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
    weights = sum(isinstance(item, Packed) for items in plan.shards.values() for item in items)
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

    def _write(self, item: TensorSpec | Packed, writer: ShardWriter) -> int:
        if self.stop.is_set():
            raise Stopped
        if isinstance(item, Packed):
            bits, rounded = _decode(item, self.reader)
            writer.write(item.spec.name, bits)
            self.advance(bits.nbytes)
            return rounded
        for chunk in self.reader.chunks(item.name, CHUNK_BYTES):
            writer.write_chunk(chunk)
            self.advance(chunk.nbytes)
        return 0


def _decode(item: Packed, reader: TensorReader) -> tuple[NDArray[np.uint16], int]:
    scales = reader.array(item.scales)
    tensor_scale = reader.array(item.tensor_scale).reshape(-1)
    if (scales & 0x7F == E4M3_NAN).any() or not np.isfinite(tensor_scale).all():
        raise _unusable(item, reader, "holds a scale that is NaN or infinite")
    if tensor_scale.size != 1 or tensor_scale[0] <= 0:
        raise _unusable(item, reader, "has no single positive tensor scale")
    group_scales = decode_e4m3(torch.from_numpy(scales)).numpy()
    steps = group_scales / tensor_scale if item.divides else group_scales * tensor_scale
    return decode_to_bf16(reader.array(item.codes), steps)


def _spec(item: TensorSpec | Packed) -> TensorSpec:
    return item.spec if isinstance(item, Packed) else item


def _check_source(folder: Path, census: Census) -> None:
    used = set(census.forms.values()) - {BF16}
    if not used or not used <= set(NVFP4_FORMS):
        raise InputError(
            f"holds {census.scheme} weights", hint="dequantize reads NVFP4", where=str(folder)
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


def _unusable(item: Packed, reader: TensorReader, message: str) -> InputError:
    path = reader.checkpoint.path(item.scales)
    hint = "hy3 verify says what is wrong with the checkpoint"
    return InputError(message, hint=hint, where=f"{path}: tensor {item.spec.name!r}")

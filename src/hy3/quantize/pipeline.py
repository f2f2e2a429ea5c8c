"""``quantize``: streams the shards of a plan into OUT, resuming what an earlier run has finished.

A thread takes a whole shard at a time, so bytes never depend on the number of threads, and a
crash costs each at most the tensor that was under way.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from hy3.checkpoint.file_hash import FileHash, hash_bytes
from hy3.checkpoint.manifest import Manifest
from hy3.checkpoint.reader import TensorReader
from hy3.checkpoint.scheme_writer import quantization_config
from hy3.checkpoint.writer import TEMPORARY_SUFFIX, write_file_durably
from hy3.errors import CheckFailed, EnvironmentFault, InputError
from hy3.kernels.scale_search_device import CPU, Device
from hy3.quantize.card import CARD_NAME, write_card
from hy3.quantize.export import export_small_files
from hy3.quantize.output_folder import OutputFolder
from hy3.quantize.pictures import draw_pictures
from hy3.quantize.plan import Plan
from hy3.quantize.progress import Meter, Progress
from hy3.quantize.resume import FinishedShard
from hy3.quantize.shard_source import HeldShards, LocalShards, ShardSource
from hy3.quantize.stats import StatsByKey, add_stats
from hy3.quantize.stream import ShardStreamer
from hy3.quantize.threads import finished_shards
from hy3.units import format_bytes

# What all threads together may hold of weights in work; a thread holds a weight and the next one,
# what it becomes, its errors and copies of arrays between calls: four times the weight covers them.
_WORK_BYTES = 700 * 10**6
_WORK_PER_WEIGHT_BYTE = 4
_WORK_PER_DECODED_BYTE = 5  # codes, and a partner under the same scale that was decoded early


@dataclass(frozen=True)
class Outcome:
    """What a run did."""

    resumed_shards: int  # finished by an earlier run
    stats: StatsByKey | None  # None when OUT was complete before
    rounded_values: int | None  # of a quantized source, that BF16 could not hold; None as above


def quantize(
    plan: Plan,
    out: Path,
    workers: int,
    progress: Progress,
    source: ShardSource | None = None,
    device: Device = CPU,
) -> Outcome:
    """Make OUT from the plan; the same bytes for any number of workers and interruptions.

    ``source`` gives the shards; without it they lie in the folder that was planned with. Scales
    are searched on ``device``, with the same result on any.

    Raises:
        InputError: OUT belongs to other parameters or another source, or the source is unsound.
        EnvironmentFault: OUT is held by another process or cannot take the output.
    """
    source = source or LocalShards(plan.checkpoint.folder, plan.stamps)
    with OutputFolder(out, plan) as folder:
        manifest = folder.finished_manifest()
        if manifest is not None:
            _check_complete(plan, out, source, manifest, progress)
            folder.forget_state()
            return Outcome(len(plan.shards), None, None)
        resumed = make_shards("quantize", folder, source, workers, progress, device)
        return _finish(plan, folder, source, resumed)


def make_shards(
    verb: str,
    folder: OutputFolder,
    source: ShardSource,
    workers: int,
    progress: Progress,
    device: Device = CPU,
) -> int:
    """Make every shard of the folder's plan durable; returns how many of them were there before.

    The source is the one that was planned with when this returns.
    """
    plan = folder.plan
    resumed = folder.resume()
    pending = _pending(plan, resumed)
    _check_space(plan, folder.path, pending)
    total = sum(step.source.nbytes for name in pending for step in plan.shards[name])
    with progress(verb, total) as advance:
        _stream(folder, source, resumed, workers, advance, device)
    for name in plan.stamps:
        source.check_unchanged(name)
    return len(resumed)


def worker_limit(plan: Plan, workers: int) -> int:
    """As many threads as are asked for, have a shard to do and fit the memory bound."""
    largest = max((step.weight.nbytes for step in plan.steps() if step.whole), default=1)
    per_byte = _WORK_PER_DECODED_BYTE if plan.stored else _WORK_PER_WEIGHT_BYTE
    fitting = _WORK_BYTES // (per_byte * largest)
    return max(1, min(workers, len(plan.shards), fitting))


def _pending(plan: Plan, resumed: dict[str, FinishedShard]) -> list[str]:
    return [name for name in plan.shards if name not in resumed]


def _stream(
    folder: OutputFolder,
    source: ShardSource,
    resumed: dict[str, FinishedShard],
    workers: int,
    advance: Meter,
    device: Device,
) -> None:
    """Make the missing shards and record each as it becomes durable; one failure stops all."""
    plan = folder.plan
    pending = _pending(plan, resumed)
    with TensorReader(plan.checkpoint, source.acquire, once=True) as reader:
        for each in add_stats(shard.stats for shard in resumed.values()).values():
            advance(0, each)
        held = HeldShards(source, reader)
        streamer = ShardStreamer(plan, held, folder.path, advance, resumed, device)
        source.expect(pending, streamer.stop)
        waiting = plan.readers(pending)
        limit = worker_limit(plan, workers)
        with closing(finished_shards(streamer.run, pending, limit, streamer.stop)) as finished:
            for name, shard in finished:
                folder.record(name, shard)
                for readers in waiting.values():
                    readers.discard(name)
                for free in [each for each, readers in waiting.items() if not readers]:
                    del waiting[free]
                    held.done(free)


def _finish(plan: Plan, folder: OutputFolder, source: ShardSource, resumed_shards: int) -> Outcome:
    """The small files, then the manifest, which makes OUT complete."""
    shards = folder.shards()
    inputs = plan.small_hashes | {name: shard.source for name, shard in shards.items()}
    inputs |= {name: source.file_hash(name) for name in plan.checkpoint.headers.keys() - shards}
    outputs = {name: shard.output for name, shard in shards.items()}
    stats = add_stats(shard.stats for shard in shards.values())
    rounded = sum(shard.rounded for shard in shards.values())
    assignment = plan.assignment
    scheme = quantization_config(plan.config, assignment.forms, assignment.layout)
    specs = plan.written_specs()
    files = export_small_files(plan.checkpoint.folder, plan.raw_config, scheme, specs)
    pictures = draw_pictures(stats, plan.parameters.scales)
    files |= pictures | {CARD_NAME: write_card(plan, stats, rounded, inputs, pictures)}
    for name, data in files.items():
        write_file_durably(folder.path / name, data)
        outputs[name] = hash_bytes(data)
    folder.complete(Manifest(plan.parameters, inputs, outputs, plan.origin, plan.source_scheme))
    return Outcome(resumed_shards, stats, rounded)


def _check_complete(
    plan: Plan, out: Path, source: ShardSource, manifest: Manifest, progress: Progress
) -> None:
    """A complete OUT holds no times, so only the source's bytes can tell that it is the same."""
    for name, expected in manifest.outputs.items():
        path = out / name
        if not path.exists() or path.stat().st_size != expected.size_bytes:
            raise CheckFailed(
                "is missing or has another size than the manifest says",
                hint="quantize again into an empty folder",
                where=str(path),
            )
    with progress("check source", plan.source_bytes) as advance:
        found: dict[str, FileHash] = dict(plan.small_hashes)
        for name, header in plan.checkpoint.headers.items():
            found[name] = source.file_hash(name)
            advance(header.file_bytes - header.data_start)
    if found != manifest.source:
        differing = sorted(
            name
            for name in found.keys() | manifest.source.keys()
            if found.get(name) != manifest.source.get(name)
        )
        raise InputError(
            f"was made from another source: {differing[0]} differs",
            hint="name an empty folder",
            where=str(out),
        )


def _check_space(plan: Plan, out: Path, pending: list[str]) -> None:
    needed = sum(step.output_bytes for name in pending for step in plan.shards[name])
    needed -= sum(path.stat().st_size for path in out.glob(f"*{TEMPORARY_SUFFIX}"))
    free = shutil.disk_usage(out).free
    if needed > free:
        raise EnvironmentFault(
            f"needs {format_bytes(needed)} and has {format_bytes(free)} free",
            hint="free some space or name a folder on another disk; what is finished is kept",
            where=str(out),
        )

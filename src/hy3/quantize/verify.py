"""``verify``: re-read a checkpoint and say what is proved, what fails and what stays unproved.

The order is that of cost: headers, then one pass over its bytes, then one over the source's.
Shards are read by several threads, each with one chunk or one weight in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hy3.checkpoint.census import take_census
from hy3.checkpoint.index import Checkpoint, open_checkpoint
from hy3.checkpoint.manifest import Manifest, read_manifest
from hy3.checkpoint.model_config import CONFIG_NAME, load_config
from hy3.checkpoint.reader import TensorReader
from hy3.errors import InputError
from hy3.hardware.cores import usable_cores
from hy3.nvfp4.scales import RULES
from hy3.quantize.check_data import check_data, scan_shard
from hy3.quantize.check_hashes import check_hashes, check_source_hashes
from hy3.quantize.check_layout import check_layout
from hy3.quantize.check_source import (
    SourceComparison,
    check_source,
    sum_errors,
)
from hy3.quantize.progress import Advance
from hy3.quantize.resume import RESUME_NAME
from hy3.quantize.threads import Stopped, finished_shards
from hy3.quantize.verdict import Check, Verdict, not_proved

_MAX_WORKERS = 8
_SOURCE_CHECKS = ("copied_bytes", "group_errors", "source_hashes")
_AFTER_LAYOUT = ("tensor_scales", "scale_nan", "scale_codes", "fp8_scales", "finite")
_LAYOUT = (
    *("tensors", "dtypes", "recipe", "model_dtype"),
    *("scheme", "vllm_matching", "sglang_matching"),
)

T = TypeVar("T")


def verify(folder: Path, source: Path | None = None, advance: Advance | None = None) -> Verdict:
    """Check the checkpoint in ``folder``, against ``source`` when it is given.

    Args:
        folder: the checkpoint to be judged; an unsound file in it is a failed check.
        source: the checkpoint that it was made from; an unsound one is an InputError.
        advance: called with the number of bytes read since the last call, from any thread.

    Raises:
        InputError: when ``folder`` holds no config.json, or ``source`` is unsound.
    """
    opened_source = open_checkpoint(source) if source else None
    if not (folder / CONFIG_NAME).is_file():
        raise InputError(
            "holds no config.json", hint="name the folder of a checkpoint", where=str(folder)
        )
    try:
        _check_finished(folder)
        config = load_config(folder)
        manifest = read_manifest(folder)
        checkpoint = open_checkpoint(folder)
    except InputError as error:
        return _unsound(error)
    crew = _Crew(advance)
    census = take_census(checkpoint, config)
    rule = _rule(manifest)
    checks = list(check_layout(folder, checkpoint, config, census, manifest))
    with TensorReader(checkpoint) as reader:
        scanned = crew.map(checkpoint, lambda shard: scan_shard(reader, shard, crew.advance))
        hashes = {shard: findings.file_hash for shard, findings in scanned.items()}
        checks += check_data(list(scanned.values()), rule is not None, _nonfinite(manifest))
        checks.append(check_hashes(folder, manifest, hashes))
        if opened_source is None:
            checks += [not_proved(identity, "no --source was given") for identity in _SOURCE_CHECKS]
            return Verdict(tuple(checks), {})
        with TensorReader(opened_source) as source_reader:
            comparison = SourceComparison(source_reader, reader, census, config)
            compared = crew.map(
                opened_source, lambda shard: comparison.compare_shard(shard, crew.advance)
            )
    findings = [*compared.values(), comparison.without_source()]
    hashes = {shard: each.file_hash for shard, each in compared.items()}
    checks += check_source(findings, rule)
    checks.append(check_source_hashes(opened_source.folder, manifest, hashes))
    return Verdict(tuple(checks), sum_errors(findings))


def bytes_to_read(folder: Path, source: Path | None = None) -> int:
    """What ``advance`` will add up to, for a bar; 0 when the files cannot be opened."""
    try:
        folders = [folder] if source is None else [folder, source]
        return sum(open_checkpoint(each).total_bytes for each in folders)
    except InputError:
        return 0


class _Crew:
    """Threads that each work on one shard; an interrupt or a fault in one stops all soon."""

    def __init__(self, advance: Advance | None) -> None:
        self._advance = advance
        self._stopped = threading.Event()

    def advance(self, count: int) -> None:
        """Report bytes read; workers call it for every chunk, so it is where they stop."""
        if self._stopped.is_set():
            raise Stopped
        if self._advance:
            self._advance(count)

    def map(self, checkpoint: Checkpoint, run: Callable[[str], T]) -> dict[str, T]:
        """Shard -> its findings, in shard order whatever the number of threads."""
        workers = min(usable_cores(), _MAX_WORKERS)
        found = dict(finished_shards(run, checkpoint.headers, workers, self._stopped))
        return {shard: found[shard] for shard in checkpoint.headers}


def _check_finished(folder: Path) -> None:
    """The state goes last: where it lies, something may be missing that no check asks for."""
    path = folder / RESUME_NAME
    if path.exists():
        raise InputError(
            "belongs to a run that was not finished",
            hint="run the same command again: it goes on where it stopped",
            where=str(path),
        )


def _rule(manifest: Manifest | None) -> str | None:
    """The manifest's scale rule when it is one of ours."""
    rule = manifest.parameters.scales if manifest else None
    return rule if rule in RULES else None


def _nonfinite(manifest: Manifest | None) -> frozenset[str]:
    return manifest.parameters.nonfinite_names if manifest else frozenset()


def _unsound(error: InputError) -> Verdict:
    """Nothing can be proved about files that cannot be read."""
    broken = Check("files", "fail", str(error))
    rest = (*_LAYOUT, *_AFTER_LAYOUT, "hashes", *_SOURCE_CHECKS)
    reason = "the files could not be opened"
    return Verdict((broken, *(not_proved(identity, reason) for identity in rest)), {})

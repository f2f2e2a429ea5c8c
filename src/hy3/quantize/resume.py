"""``ResumeState``: what an interrupted ``quantize`` has finished; removed when it completes.

It may hold what the manifest must not: sizes and modification times, by which a rerun notices
that the source or a finished shard is no longer the same without reading it again.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hy3.checkpoint.file_hash import FileHash
from hy3.checkpoint.json_file import read_json_if_there
from hy3.checkpoint.manifest import Parameters
from hy3.checkpoint.strict_json import shown
from hy3.errors import InputError
from hy3.quantize.stats import StatsByKey, WeightStats, split_key

RESUME_NAME = "hy3_resume.json"
SCHEMA = "hy3.resume/3"
_HINT = "quantize again into an empty folder"


@dataclass(frozen=True)
class FileStamp:
    """How a file looked: by its time, or, on a hub, where no time counts, by its hash there."""

    size_bytes: int
    mtime_ns: int  # since the epoch; 0 on a hub
    digest: str = ""


@dataclass(frozen=True)
class FinishedShard:
    """One shard of the output that is complete and durable."""

    source: FileHash  # the shard it was made from
    output: FileHash
    stamp: FileStamp  # of the output
    stats: StatsByKey  # of what was quantized in it
    # Of its weights that share a tensor scale with weights of other shards.
    largest: dict[str, float] = field(default_factory=dict)
    rounded: int = 0  # values of a quantized source that BF16 could not hold


@dataclass(frozen=True)
class ResumeState:
    """Parameters, the source's files as they looked, and the finished shards by file name."""

    parameters: Parameters
    source: dict[str, FileStamp]
    shards: dict[str, FinishedShard]

    def encode(self) -> bytes:
        """The bytes to write after each shard; floats keep every bit."""
        value = {
            "schema": SCHEMA,
            "parameters": vars(self.parameters),
            "source": {name: vars(stamp) for name, stamp in self.source.items()},
            "shards": {
                name: {
                    "source": vars(shard.source),
                    "output": vars(shard.output),
                    "stamp": vars(shard.stamp),
                    "stats": {key: vars(stats) for key, stats in shard.stats.items()},
                    "largest": shard.largest,
                    "rounded": shard.rounded,
                }
                for name, shard in self.shards.items()
            },
        }
        return json.dumps(value).encode()


def stamp_of(path: Path) -> FileStamp:
    """How a file looks now; OSError when it is missing."""
    status = path.stat()
    return FileStamp(status.st_size, status.st_mtime_ns)


def read_resume_state(folder: Path) -> ResumeState | None:
    """The state in ``folder``, None when there is none; InputError when it is unsound."""
    path = folder / RESUME_NAME
    value = read_json_if_there(path, _HINT)
    if value is None:
        return None
    try:
        if value["schema"] != SCHEMA:
            raise ValueError(f"the schema is {shown(value['schema'])}")
        return ResumeState(
            Parameters(**{key: _text(item) for key, item in value["parameters"].items()}),
            {name: _stamp(stamp) for name, stamp in value["source"].items()},
            {name: _shard(item) for name, item in value["shards"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"is not the state of an interrupted run ({reason})", hint=_HINT, where=str(path)
        ) from error


def _shard(item: dict[str, Any]) -> FinishedShard:
    return FinishedShard(
        _hash(item["source"]),
        _hash(item["output"]),
        _stamp(item["stamp"]),
        {_stats_key(key): decode_stats(stats) for key, stats in item["stats"].items()},
        {name: _number(largest) for name, largest in item["largest"].items()},
        decode_count(item["rounded"]),
    )


def _hash(item: dict[str, Any]) -> FileHash:
    return FileHash(_text(item["sha256"]), decode_count(item["size_bytes"]))


def _stamp(item: dict[str, Any]) -> FileStamp:
    size, mtime = decode_count(item["size_bytes"]), decode_count(item["mtime_ns"])
    return FileStamp(size, mtime, _text(item["digest"]))


def _stats_key(key: str) -> str:
    split_key(key)  # ValueError for a layer that is no number
    return key


def decode_stats(item: dict[str, Any]) -> WeightStats:
    """From its fields; KeyError, TypeError or ValueError if it is something else."""
    error, max_error, energy = (_number(item[key]) for key in ("error", "max_error", "energy"))
    return WeightStats(error, max_error, energy, tuple(map(decode_count, item["shifts"])))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a string")
    return value


def decode_count(value: Any) -> int:
    """A count, as it was encoded; ValueError for anything else."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{shown(value)} is not a count")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{shown(value)} is not a size")
    return float(value)

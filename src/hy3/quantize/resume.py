"""``ResumeState``: what an interrupted ``quantize`` has finished; removed when it completes.

It may hold what the manifest must not: sizes and modification times, by which a rerun notices
that the source or a finished shard is no longer the same without reading it again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hy3.checkpoint.file_hash import FileHash
from hy3.checkpoint.manifest import Parameters
from hy3.checkpoint.strict_json import JsonFault, parse_object
from hy3.errors import InputError
from hy3.quantize.stats import StatsByKey, WeightStats

RESUME_NAME = "hy3_resume.json"
SCHEMA = "hy3.resume/2"


@dataclass(frozen=True)
class FileStamp:
    """How a file looked; nanoseconds since the epoch."""

    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class FinishedShard:
    """One shard of the output that is complete and durable."""

    source: FileHash  # the shard it was made from
    output: FileHash
    stamp: FileStamp  # of the output
    stats: StatsByKey  # of what was quantized in it
    # Of its weights that share a tensor scale with weights of other shards.
    largest: dict[str, float] = field(default_factory=dict)


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
    try:
        value = parse_object(path.read_bytes())
        if value["schema"] != SCHEMA:
            raise ValueError(value["schema"])
        return ResumeState(
            Parameters(**value["parameters"]),
            {name: FileStamp(**stamp) for name, stamp in value["source"].items()},
            {name: _shard(item) for name, item in value["shards"].items()},
        )
    except FileNotFoundError:
        return None
    except (OSError, JsonFault, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"is not the state of an interrupted run ({error})",
            hint="quantize again into an empty folder",
            where=str(path),
        ) from error


def _shard(item: dict[str, Any]) -> FinishedShard:
    return FinishedShard(
        FileHash(**item["source"]),
        FileHash(**item["output"]),
        FileStamp(**item["stamp"]),
        {key: decode_stats(stats) for key, stats in item["stats"].items()},
        {name: float(largest) for name, largest in item["largest"].items()},
    )


def decode_stats(item: dict[str, Any]) -> WeightStats:
    """From its fields; KeyError, TypeError or ValueError if it is something else."""
    error, max_error, energy = (float(item[key]) for key in ("error", "max_error", "energy"))
    return WeightStats(error, max_error, energy, tuple(map(int, item["shifts"])))

"""SRC of ``quantize``: a folder as it is, or a hub's model whose shards arrive during the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hy3.cli.model_folder import Model, open_model
from hy3.errors import InputError

if TYPE_CHECKING:
    from hy3.cli.output import Output
    from hy3.quantize.shard_source import ShardSource
    from hy3.quantize.source import Source

# In OUT while it is unfinished: shards that were fetched to be read once.
PASSING_NAME = ".hy3_source"


def open_source_model(model: str, output: Output, discard: bool) -> Model:
    """SRC with all small files that OUT gets or its card quotes."""
    from hy3.quantize.export import COPIED

    opened = open_model(model, output, (*COPIED, "README.md"))
    if discard and opened.remote is None:
        raise InputError(
            "is for a model that is fetched from a hub; files that are here already stay",
            hint="leave the option out, or name the model as hf://org/name",
            where="--discard-source",
        )
    return opened


def source_of(model: Model) -> Source:
    """What is to be planned: a hub's files are told apart by their hashes there."""
    from hy3.quantize.resume import FileStamp
    from hy3.quantize.source import Source, local_source, small_names

    if model.remote is None:
        return local_source(model.folder, model.origin)
    files = model.remote.repository.files
    names = [*model.remote.checkpoint.headers, *small_names(model.folder)]
    stamps = {name: FileStamp(files[name].size_bytes, 0, files[name].digest) for name in names}
    return Source(model.remote.checkpoint, stamps, model.origin)


@contextmanager
def shards_of(model: Model, out: Path, discard: bool) -> Iterator[ShardSource | None]:
    """Where the run takes the shards from; None means from the planned folder."""
    if model.remote is None:
        yield None
        return
    from hy3.hub.shards import HubShards

    headers = model.remote.checkpoint.headers
    passing = out / PASSING_NAME if discard else None
    with HubShards(model.remote.repository, headers, passing) as shards:
        yield shards

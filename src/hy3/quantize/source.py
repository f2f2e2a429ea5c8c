"""``Source``: what is quantized, a folder or one commit of a model on a hub, before it is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hy3.checkpoint.index import INDEX_NAME, Checkpoint, open_checkpoint
from hy3.checkpoint.manifest import Origin
from hy3.checkpoint.model_config import CONFIG_NAME
from hy3.quantize.resume import FileStamp, stamp_of


@dataclass(frozen=True)
class Source:
    """A checkpoint whose small files lie in ``checkpoint.folder``; its shards may be elsewhere."""

    checkpoint: Checkpoint
    stamps: dict[str, FileStamp]  # config, index and shards, as they looked before reading
    origin: Origin | None = None


def small_names(folder: Path) -> list[str]:
    """The files beside the shards that decide the output: config and, if there, index."""
    return [CONFIG_NAME, *([INDEX_NAME] if (folder / INDEX_NAME).exists() else [])]


def local_source(folder: Path, origin: Origin | None = None) -> Source:
    """The checkpoint in ``folder``; InputError when it is unsound."""
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    stamps = {name: stamp_of(folder / name) for name in [*names, *small_names(folder)]}
    return Source(open_checkpoint(folder), stamps, origin)

"""A checkpoint folder: which tensor lies in which shard, agreed between index and headers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hy3.checkpoint.header import Header, TensorInfo, read_header
from hy3.checkpoint.json_file import read_json_if_there
from hy3.checkpoint.strict_json import shown
from hy3.errors import InputError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_HINT = "index and shards do not fit together: fetch the checkpoint again"


@dataclass(frozen=True)
class Index:
    """What ``model.safetensors.index.json`` says."""

    weight_map: dict[str, str]  # tensor name -> shard file name
    declared_bytes: int | None  # metadata.total_size


@dataclass(frozen=True)
class Checkpoint:
    """All headers of one folder; every tensor is in exactly one shard."""

    folder: Path
    headers: dict[str, Header]  # shard file name -> header, sorted by name
    tensors: dict[str, str]  # tensor name -> shard file name, in shard and data order
    declared_bytes: int | None  # metadata.total_size of the index, which nothing here relies on

    def info(self, name: str) -> TensorInfo:
        """Where one tensor lies; KeyError when the checkpoint has no such tensor."""
        return self.headers[self.tensors[name]].tensors[name]

    def path(self, name: str) -> Path:
        """The shard that holds one tensor."""
        return self.headers[self.tensors[name]].path

    @property
    def total_bytes(self) -> int:
        """Bytes of tensor data, headers not counted: what the index calls total_size."""
        return sum(self.info(name).nbytes for name in self.tensors)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read the index and every header, or the lone ``model.safetensors``.

    Raises:
        InputError: when index and shards disagree in any way, or any header is unsound.
    """
    if not folder.is_dir():
        raise InputError("is not a folder", hint="name a checkpoint folder", where=str(folder))
    on_disk = {path.name for path in folder.glob("*.safetensors")}
    index = find_index(folder, on_disk)
    headers = {name: read_header(folder / name) for name in sorted(on_disk)}
    return join_checkpoint(folder, headers, index)


def join_checkpoint(folder: Path, headers: dict[str, Header], index: Index | None) -> Checkpoint:
    """The checkpoint of these headers; ``index`` is None for a lone ``model.safetensors``.

    Raises:
        InputError: when a tensor lies in two shards, or index and headers disagree.
    """
    tensors = _place_tensors(headers.values())
    if index is None:
        return Checkpoint(folder, headers, tensors, None)
    _check_placement(index.weight_map, tensors, headers, folder / INDEX_NAME)
    return Checkpoint(folder, headers, tensors, index.declared_bytes)


def find_index(folder: Path, shards: set[str]) -> Index | None:
    """The index of ``folder``, None for a lone ``model.safetensors``.

    Raises:
        InputError: the index is missing or unsound, or does not name exactly ``shards``.
    """
    path = folder / INDEX_NAME
    raw = read_json_if_there(path, _HINT)
    if raw is not None:
        index = _parse_index(raw, path)
        _check_shards(set(index.weight_map.values()), shards, path)
        return index
    if shards == {SINGLE_NAME}:
        return None
    found = f"{len(shards)} shards" if shards else "no shard"
    raise InputError(
        f"has {found} but neither {INDEX_NAME} nor a lone {SINGLE_NAME}",
        hint="fetch the whole checkpoint, its index included",
        where=str(folder),
    )


def _parse_index(index: dict[str, Any], path: Path) -> Index:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _fault(path, "has no weight_map")
    shards: set[str] = set()  # names found to be plain, so that each is looked at once
    for name, shard in weight_map.items():
        if isinstance(shard, str) and shard in shards:
            continue
        if not isinstance(shard, str) or not _is_plain_shard_name(shard):
            wrong = f"{shown(shard)}, which is not the plain name of a .safetensors file"
            raise _fault(path, f"places it in {wrong}", name)
        shards.add(shard)
    metadata = index.get("metadata")
    declared = metadata.get("total_size") if isinstance(metadata, dict) else None
    return Index(weight_map, declared if type(declared) is int else None)


def _is_plain_shard_name(name: str) -> bool:
    """No path: a shard must lie in the checkpoint's own folder."""
    harmless = name.isprintable() and not name.startswith(".") and not set(name) & set("/\\:")
    return harmless and name.endswith(".safetensors")


def _check_shards(named: set[str], on_disk: set[str], index_path: Path) -> None:
    for shard in sorted(named - on_disk):
        raise _fault(index_path, f"names the shard {shown(shard)}, which is missing")
    for shard in sorted(on_disk - named):
        raise InputError(
            f"is not named in {INDEX_NAME}",
            hint="move files that do not belong to the checkpoint out of the folder",
            where=str(index_path.parent / shard),
        )


def _place_tensors(headers: Iterable[Header]) -> dict[str, str]:
    tensors: dict[str, str] = {}
    for header in headers:
        for name in sorted(tensors.keys() & header.tensors.keys()):
            start = header.data_start + header.tensors[name].start
            raise InputError(
                f"is stored in {tensors[name]} as well",
                hint="a tensor must lie in one shard: fetch the checkpoint again",
                where=f"{header.path}: tensor {name!r}: byte {start}",
            )
        tensors |= dict.fromkeys(header.tensors, header.path.name)
    return tensors


def _check_placement(
    weight_map: dict[str, str], tensors: dict[str, str], headers: dict[str, Header], path: Path
) -> None:
    if weight_map == tensors:
        return
    for name, shard in weight_map.items():
        if name not in headers[shard].tensors:
            raise _fault(path, f"places it in {shard}, which does not hold it", name)
    for name, shard in tensors.items():
        if name not in weight_map:
            header = headers[shard]
            raise InputError(
                f"is not named in {INDEX_NAME}",
                hint="index and shards come from different checkpoints: fetch both again",
                where=f"{header.path}: tensor {name!r}: "
                f"byte {header.data_start + header.tensors[name].start}",
            )


def _fault(path: Path, message: str, tensor: str = "") -> InputError:
    where = str(path) + (f": tensor {tensor!r}" if tensor else "")
    return InputError(message, hint=_HINT, where=where)

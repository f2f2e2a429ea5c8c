"""MODEL on the command line: a folder, or a model on a hub for the verbs that can do with it."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hy3.errors import InputError

if TYPE_CHECKING:
    from hy3.checkpoint.index import Checkpoint
    from hy3.checkpoint.manifest import Origin
    from hy3.cli.output import Output
    from hy3.hub.checkpoint import RemoteCheckpoint
    from hy3.hub.name import HubName


@dataclass(frozen=True)
class Model:
    """A checkpoint whose config, index and tokenizer lie in ``folder``."""

    name: str  # of the folder, or org/name
    folder: Path
    origin: Origin | None  # of one that came from a hub
    remote: RemoteCheckpoint | None  # of one whose shards may not be here yet

    def checkpoint(self) -> Checkpoint:
        """Its headers; InputError when they are unsound."""
        from hy3.checkpoint.index import open_checkpoint

        return self.remote.checkpoint if self.remote else open_checkpoint(self.folder)


def expand_home(path: str | Path) -> Path:
    """The path with a leading ``~`` resolved; one of an unknown user stays as it is."""
    return Path(os.path.expanduser(path))


def output_folder(out: Path) -> Path:
    """The folder that OUT names, which need not exist; InputError for a hub name."""
    # A path has one slash left of the two.
    if str(out).startswith("hf:/"):
        raise InputError(
            "is a model on a hub, and OUT is a local folder to write",
            hint="name a folder, and upload what lies in it with `hf upload`",
            where=str(out).replace("hf:/", "hf://"),
        )
    return expand_home(out)


def model_folder(model: str) -> Path:
    """The folder that MODEL names; InputError for a hub name or something that is no folder."""
    path, name = expand_home(model), _hub_name(model)
    if name:
        raise InputError(
            "this command wants a local folder, and none of that name exists here",
            hint=f"fetch it with `{name.download_command('DIR')}` and name DIR",
            where=model,
        )
    try:
        problem = "" if stat.S_ISDIR(path.stat().st_mode) else "is not a folder"
    except FileNotFoundError:
        problem = "does not exist"
    except OSError as error:
        problem = f"cannot be opened ({error.strerror})"
    if problem:
        raise InputError(problem, hint="name a folder that holds a checkpoint", where=model)
    return path


def open_model(model: str, output: Output, small_files: Sequence[str] = ()) -> Model:
    """The model that MODEL names, here or on a hub; of the latter only headers are fetched.

    Args:
        small_files: patterns of the files wanted of a hub besides those that planning needs
    """
    from hy3.checkpoint.manifest import Origin

    name = _hub_name(model)
    if name is None:
        folder = model_folder(model)
        return Model(folder.resolve().name, folder, None, None)
    from hy3.hub.checkpoint import PLANNING_FILES, offline_folder, read_remote_checkpoint
    from hy3.hub.repository import free_bytes, open_repository
    from hy3.units import format_bytes

    folder_in_cache = offline_folder(name)
    if folder_in_cache:
        origin = Origin(name.repository, folder_in_cache.name)
        return Model(name.repository, folder_in_cache, origin, None)
    repository = open_repository(name)
    size, free = format_bytes(repository.shard_bytes), format_bytes(free_bytes(repository.cache))
    output.status(
        f"{name}: {size} in {len(repository.shards)} shards, commit {repository.commit[:12]}; "
        f"the cache's disk has {free} free"
    )
    remote = read_remote_checkpoint(repository, (*PLANNING_FILES, *small_files))
    origin = Origin(name.repository, repository.commit)
    return Model(name.repository, remote.folder, origin, remote)


def _hub_name(model: str) -> HubName | None:
    """What begins with ``hf://``, and ``org/name`` when nothing of that name exists here."""
    from hy3.hub.name import PREFIX, parse_hub_name

    if model.startswith(PREFIX) or not os.path.exists(expand_home(model)):
        return parse_hub_name(model)
    return None

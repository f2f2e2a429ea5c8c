"""``RemoteCheckpoint``: a checkpoint on a hub, known by its small files and its headers.

Its ``checkpoint`` is like that of a folder, but the shards need not be there yet: their paths say
where the library's cache keeps them once they are fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, is_offline_mode, snapshot_download

from hy3.checkpoint.index import INDEX_NAME, Checkpoint, find_index, join_checkpoint
from hy3.checkpoint.model_config import CONFIG_NAME
from hy3.errors import EnvironmentFault, InputError
from hy3.hub.faults import OFFLINE_HINT, OFFLINE_MESSAGE, hub_errors
from hy3.hub.headers import read_remote_headers
from hy3.hub.name import HubName
from hy3.hub.repository import Repository
from hy3.hub.small_files import fetch_small_files

# What a census and a plan look at; a quantizer copies more.
PLANNING_FILES = (CONFIG_NAME, INDEX_NAME, "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class RemoteCheckpoint:
    """One commit; its small files lie in ``checkpoint.folder``, a snapshot in the cache."""

    repository: Repository
    checkpoint: Checkpoint

    @property
    def folder(self) -> Path:
        """Where config, index and tokenizer are."""
        return self.checkpoint.folder


def read_remote_checkpoint(
    repository: Repository, small_files: Sequence[str] = PLANNING_FILES
) -> RemoteCheckpoint:
    """Fetch small files and headers, no data of any shard.

    Args:
        small_files: patterns of their names; config and index always come

    Raises:
        InputError: index and headers do not fit together, or a file is not the announced one.
        EnvironmentFault: the hub cannot be reached.
    """
    folder = fetch_small_files(repository, small_files)
    index = find_index(folder, set(repository.shards))
    headers = read_remote_headers(repository, folder)
    return RemoteCheckpoint(repository, join_checkpoint(folder, headers, index))


def offline_folder(name: HubName, cache: Path | None = None) -> Path | None:
    """Under HF_HUB_OFFLINE the whole checkpoint as a folder in the cache; None when online.

    Raises:
        EnvironmentFault: offline, and the cache does not hold all of it.
    """
    if not is_offline_mode():
        return None
    with hub_errors(str(name)):
        folder = Path(
            snapshot_download(
                name.repository,
                revision=name.revision,
                cache_dir=cache or constants.HF_HUB_CACHE,
                local_files_only=True,
            )
        )
    try:
        find_index(folder, {path.name for path in folder.glob("*.safetensors")})
    except InputError as error:
        raise EnvironmentFault(OFFLINE_MESSAGE, hint=OFFLINE_HINT, where=str(name)) from error
    return folder

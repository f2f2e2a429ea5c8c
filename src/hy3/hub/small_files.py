"""The small files of a checkpoint on a hub: config, index, tokenizer, in the library's cache."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from huggingface_hub import constants

from hy3.checkpoint.index import INDEX_NAME
from hy3.checkpoint.model_config import CONFIG_NAME
from hy3.errors import InputError
from hy3.hub.content import has_content, wrong_content
from hy3.hub.faults import hub_errors, retried
from hy3.hub.repository import HubFile, Repository

_PARALLEL = 8


def fetch_small_files(repository: Repository, patterns: Sequence[str]) -> Path:
    """Bring config, index and what matches ``patterns`` into the cache; returns their folder.

    Raises:
        InputError: the repository has no config.json, or a file is not what the hub announced.
        EnvironmentFault: the hub cannot be reached or the cache cannot be written.
    """
    if CONFIG_NAME not in repository.files:
        raise InputError(
            f"holds no {CONFIG_NAME}",
            hint="name a repository whose top folder is a checkpoint",
            where=str(repository.name),
        )
    patterns = (CONFIG_NAME, INDEX_NAME, *patterns)
    wanted = [
        file
        for file in repository.files.values()
        if any(fnmatch.fnmatchcase(file.name, pattern) for pattern in patterns)
    ]
    with ThreadPoolExecutor(_PARALLEL) as pool:
        paths = list(pool.map(partial(_fetch, repository), wanted))
    _remember_revision(repository)
    return paths[0].parent


def _remember_revision(repository: Repository) -> None:
    """Let the library note which commit the branch or tag was, to be found when offline."""
    revision = repository.name.revision or constants.DEFAULT_REVISION
    with hub_errors(repository.where(CONFIG_NAME)):
        retried(partial(repository.into_cache, CONFIG_NAME, revision))


def _fetch(repository: Repository, file: HubFile) -> Path:
    """One file, fetched again once if its content is not the announced one."""
    for force in (False, True):
        with hub_errors(repository.where(file.name)):
            path = retried(partial(repository.into_cache, file.name, force=force))
        if has_content(path, file):
            return path
    raise wrong_content(repository, file)

"""The small files of a checkpoint on a hub: config, index, tokenizer, in the library's cache."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hy3.checkpoint.index import INDEX_NAME
from hy3.checkpoint.model_config import CONFIG_NAME
from hy3.errors import InputError
from hy3.hub.content import has_content, wrong_content
from hy3.hub.faults import hub_errors, retried
from hy3.hub.repository import HubFile, Repository

MAX_SMALL_BYTES = 100_000_000
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
    wanted = [
        file
        for file in repository.files.values()
        if file.name in (CONFIG_NAME, INDEX_NAME) or _is_small(file, patterns)
    ]
    with ThreadPoolExecutor(_PARALLEL) as pool:
        paths = list(pool.map(lambda file: _fetch(repository, file), wanted))
    return paths[0].parent


def _is_small(file: HubFile, patterns: Sequence[str]) -> bool:
    matches = any(fnmatch.fnmatchcase(file.name, pattern) for pattern in patterns)
    return matches and file.size_bytes <= MAX_SMALL_BYTES


def _fetch(repository: Repository, file: HubFile) -> Path:
    """One file, fetched again once if its content is not the announced one."""
    for force in (False, True):
        with hub_errors(repository.where(file.name)):
            path = retried(
                lambda force=force: repository.api.hf_hub_download(  # type: ignore[misc]
                    repository.name.repository,
                    file.name,
                    revision=repository.commit,
                    cache_dir=repository.cache,
                    force_download=force,
                )
            )
        if has_content(Path(path), file):
            return Path(path)
    raise wrong_content(repository, file)

"""``Repository``: one commit of a model on a hub: its files, their sizes and their hashes.

The commit is resolved once. Every later request names it, so a push in the meantime cannot mix two
versions.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_url, try_to_load_from_cache
from huggingface_hub.utils import build_hf_headers, disable_progress_bars, logging

from hy3.errors import InputError
from hy3.hub.faults import hub_errors, retried
from hy3.hub.name import HubName

SHA256_LENGTH = 64


@dataclass(frozen=True)
class HubFile:
    """A file as the hub announces it."""

    name: str
    size_bytes: int
    digest: str  # SHA-256 of a file in LFS, else its git object id (SHA-1)

    def new_hash(self) -> Any:
        """A hash object whose digest must become ``digest`` once it has seen all bytes."""
        if len(self.digest) == SHA256_LENGTH:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size_bytes, usedforsecurity=False)


@dataclass(frozen=True)
class Repository:
    """One commit; ``files`` are those of its top folder."""

    name: HubName
    commit: str
    files: dict[str, HubFile]
    api: HfApi
    cache: Path

    @property
    def shards(self) -> list[str]:
        """The safetensors files, sorted."""
        return sorted(name for name in self.files if name.endswith(".safetensors"))

    @property
    def shard_bytes(self) -> int:
        """Size of all shards as files."""
        return sum(self.files[name].size_bytes for name in self.shards)

    def where(self, file: str) -> str:
        """How errors call one file of it."""
        return f"hf://{self.name.repository}@{self.commit[:12]}/{file}"

    def url(self, file: str) -> str:
        """The address of one file of this commit."""
        return hf_hub_url(
            self.name.repository, file, revision=self.commit, endpoint=self.api.endpoint
        )

    def headers(self) -> dict[str, str]:
        """What every request carries: the token, and no compression, so that offsets hold."""
        headers = build_hf_headers(token=self.api.token, library_name="hy3")
        return headers | {"Accept-Encoding": "identity"}

    def into_cache(self, file: str, revision: str = "", force: bool = False) -> Path:
        """Let the library fetch one file, or link what its cache has already.

        ``revision`` is this commit unless another one is named.
        """
        path = self.api.hf_hub_download(
            self.name.repository,
            file,
            revision=revision or self.commit,
            cache_dir=self.cache,
            force_download=force,
        )
        return Path(path)

    def cached(self, file: str) -> Path | None:
        """Where the library's cache holds this commit's file, if it does."""
        found = try_to_load_from_cache(
            self.name.repository, file, cache_dir=self.cache, revision=self.commit
        )
        return Path(found) if isinstance(found, str) else None


def open_repository(
    name: HubName, api: HfApi | None = None, cache: Path | None = None
) -> Repository:
    """Resolve the revision and list the files.

    Args:
        api: endpoint and token; those of the environment by default
        cache: the library's cache folder; that of the environment by default

    Raises:
        InputError: no such model or revision, or no access to it.
        EnvironmentFault: the hub cannot be reached.
    """
    _quieten_library()
    api, cache = api or HfApi(), cache or Path(constants.HF_HUB_CACHE)
    with hub_errors(str(name)):
        info = retried(
            lambda: api.model_info(name.repository, revision=name.revision, files_metadata=True)
        )
    if not info.sha:
        raise InputError("has no commit yet", hint="name a model with files", where=str(name))
    files = {}
    for sibling in info.siblings or []:
        digest = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
        if "/" not in sibling.rfilename and sibling.size is not None and digest:
            files[sibling.rfilename] = HubFile(sibling.rfilename, sibling.size, digest)
    return Repository(name, info.sha, files, api, cache)


def free_bytes(folder: Path) -> int:
    """Free space where ``folder`` is or will be."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    return shutil.disk_usage(existing).free


def _quieten_library() -> None:
    """Its bars would fight with ours, and what it warns of we retry and report ourselves."""
    if constants.HF_HUB_DISABLE_PROGRESS_BARS is None:
        disable_progress_bars()
    logging.set_verbosity(logging.ERROR)

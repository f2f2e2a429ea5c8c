"""One shard to disk by the library's download: resumed after anything, checked by its hash."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
from filelock import FileLock, Timeout
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.file_download import http_get, repo_folder_name

from hy3.errors import InputError
from hy3.hub.content import ArrivingFile, Cancelled, WrongContent, has_content, wrong_content
from hy3.hub.faults import ATTEMPTS, FIRST_PAUSE_S, hub_errors, is_passing, retried
from hy3.hub.repository import HubFile, Repository
from hy3.units import format_bytes

_LOCK_POLL_S = 0.5


def fetch_file(
    repository: Repository, file: HubFile, path: Path, cancelled: threading.Event
) -> None:
    """Make ``path`` the whole file, beginning with what it holds already.

    Wrong content is fetched again once.

    Raises:
        Cancelled: once ``cancelled`` is set; what has arrived stays for the next run.
        InputError: the content is wrong again, the hub no longer has it, or it is too large.
        EnvironmentFault: network or disk.
    """
    if file.size_bytes > constants.MAX_HTTP_DOWNLOAD_SIZE:
        raise InputError(
            f"has {format_bytes(file.size_bytes)}: a hub sends no file of that size over HTTP",
            hint=f"fetch it with `hf download {repository.name.repository}`, then run this again",
            where=repository.where(file.name),
        )
    for _ in range(2):
        with hub_errors(repository.where(file.name)):
            with ArrivingFile(path, file, cancelled) as arriving:
                _complete(repository, file, arriving, cancelled)
                if arriving.complete:
                    return
            path.unlink()
    raise wrong_content(repository, file)


def fetch_into_cache(repository: Repository, file: HubFile, cancelled: threading.Event) -> Path:
    """The file in the library's cache, where everything else that uses the cache finds it.

    The content goes under its hash into the cache's blobs; the library then links it into the
    snapshot. Errors are those of ``fetch_file``.
    """
    cached = repository.cached(file.name)
    if cached:
        if has_content(cached, file, cancelled):
            return cached
        cached.resolve().unlink()
        cached.unlink(missing_ok=True)
    folder = repo_folder_name(repo_id=repository.name.repository, repo_type="model")
    blob = repository.cache / folder / "blobs" / file.digest
    with hub_errors(repository.where(file.name)):
        with _locked(repository.cache / ".locks" / folder / f"{file.digest}.lock", cancelled):
            if not (blob.exists() and has_content(blob, file, cancelled)):
                blob.parent.mkdir(parents=True, exist_ok=True)
                arriving = blob.with_name(f"{file.digest}.hy3.incomplete")
                fetch_file(repository, file, arriving, cancelled)
                arriving.rename(blob)
        return retried(partial(repository.into_cache, file.name))


def _complete(
    repository: Repository, file: HubFile, arriving: ArrivingFile, cancelled: threading.Event
) -> None:
    """Download until nothing is missing; gives up after several attempts without a new byte.

    The library resumes by itself after most faults, but not after a reset in mid-file or a server
    error.
    """
    attempt = 0
    while True:
        before = arriving.size_bytes
        try:
            http_get(
                repository.url(file.name),
                arriving,
                resume_size=before,
                headers=repository.headers(),
                expected_size=file.size_bytes,
                displayed_filename=file.name,
            )
            return
        except WrongContent:
            return
        except (httpx.TransportError, HfHubHTTPError) as error:
            attempt = 0 if arriving.size_bytes > before else attempt + 1
            if attempt == ATTEMPTS or not is_passing(error):
                raise
        except OSError as error:
            if error.errno is not None:
                raise
            return  # the library has counted other bytes than announced: the hash says so, too
        if cancelled.wait(FIRST_PAUSE_S * 2**attempt):
            raise Cancelled


@contextmanager
def _locked(path: Path, cancelled: threading.Event) -> Iterator[None]:
    """The library's own lock of a blob, so that nobody else fetches it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    while True:
        try:
            lock.acquire(timeout=_LOCK_POLL_S)
            break
        except Timeout:
            if cancelled.is_set():
                raise Cancelled from None
    try:
        yield
    finally:
        lock.release()

"""``HubShards``: the shards of a remote checkpoint, downloaded a few ahead of who reads them."""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from hy3.checkpoint.file_hash import FileHash, hash_file
from hy3.checkpoint.header import Header, read_header
from hy3.errors import EnvironmentFault, InputError
from hy3.hub.content import Cancelled
from hy3.hub.download import fetch_file, fetch_into_cache
from hy3.hub.repository import SHA256_LENGTH, Repository, free_bytes
from hy3.units import format_bytes

AHEAD = 2  # shards on their way or waiting that nobody reads yet
_PARALLEL_DOWNLOADS = 4
_POLL_S = 0.2


class HubShards:
    """A source of shards: of a pinned commit, whole, and checked against the hub's hashes.

    Args:
        headers: as they were planned with; what arrives must have the same
        passing: a folder in which a shard lies only until it is released; without it shards are
            kept in the library's cache. What the cache holds already is taken from there and
            stays there in either case.
    """

    def __init__(
        self, repository: Repository, headers: Mapping[str, Header], passing: Path | None
    ) -> None:
        self.repository, self.headers, self.passing = repository, headers, passing
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._coming: deque[str] = deque()
        self._waiting: set[str] = set()  # asked of the hub, not yet acquired
        self._fetched: dict[str, Future[Path]] = {}
        self._pool = ThreadPoolExecutor(_PARALLEL_DOWNLOADS)

    def __enter__(self) -> HubShards:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)
        if self.passing and kind is None:
            shutil.rmtree(self.passing, ignore_errors=True)

    def expect(self, shards: Sequence[str], stop: threading.Event) -> None:
        """Begin to download in this order, a few ahead, until ``stop`` is set.

        Raises:
            EnvironmentFault: the disk has no room for what will lie there at once.
        """
        self._check_room(shards)
        with self._lock:
            self._stop = stop
            self._coming.extend(shards)
            self._fetch_ahead()

    def acquire(self, shard: str) -> Path:
        """Where the shard lies; blocks until it has arrived and its hash is right.

        Raises:
            Cancelled, InputError, EnvironmentFault: as ``fetch_file`` does.
        """
        with self._lock:
            future = self._fetched.get(shard) or self._start(shard)
            self._waiting.discard(shard)
            self._fetch_ahead()
        while not wait([future], _POLL_S).done:
            if self._stop.is_set():
                raise Cancelled
        return future.result()

    def release(self, shard: str) -> None:
        """Give its space back, if it was fetched to pass."""
        with self._lock:
            path = self._fetched.pop(shard).result()
        if path.parent == self.passing:
            path.unlink()

    def check_unchanged(self, name: str) -> None:
        """A commit does not change, and the hashes of what came from it have been checked."""

    def file_hash(self, shard: str) -> FileHash:
        """From the hub where it knows the SHA-256, else by reading the shard."""
        file = self.repository.files[shard]
        if len(file.digest) == SHA256_LENGTH:
            return FileHash(file.digest, file.size_bytes)
        return hash_file(self.acquire(shard))

    def _check_room(self, shards: Sequence[str]) -> None:
        files = [self.repository.files[shard] for shard in shards]
        sizes = sorted(file.size_bytes for file in files if not self.repository.cached(file.name))
        if self.passing:
            sizes = sizes[-AHEAD - 1 :]
        needed, folder = sum(sizes), self.passing or self.repository.cache
        free = free_bytes(folder)
        if needed > free:
            raise EnvironmentFault(
                f"needs {format_bytes(needed)} for shards and has {format_bytes(free)} free",
                hint="free some space, or see --discard-source, which needs room for a few shards",
                where=str(folder),
            )

    def _fetch_ahead(self) -> None:
        while self._coming and len(self._waiting) < AHEAD and not self._stop.is_set():
            shard = self._coming.popleft()
            if shard not in self._fetched:
                self._start(shard)
                self._waiting.add(shard)

    def _start(self, shard: str) -> Future[Path]:
        if self._stop.is_set():
            raise Cancelled
        self._fetched[shard] = self._pool.submit(self._fetch, shard)
        return self._fetched[shard]

    def _fetch(self, shard: str) -> Path:
        path = self._bring(shard)
        if replace(read_header(path), path=self.headers[shard].path) != self.headers[shard]:
            raise InputError(
                "has another header than was fetched of it before",
                hint="something between the hub and here alters what is sent: run it again",
                where=self.repository.where(shard),
            )
        return path

    def _bring(self, shard: str) -> Path:
        file = self.repository.files[shard]
        if self.passing is None or self.repository.cached(shard):
            return fetch_into_cache(self.repository, file, self._stop)
        self.passing.mkdir(parents=True, exist_ok=True)
        fetch_file(self.repository, file, self.passing / shard, self._stop)
        return self.passing / shard

"""``ShardSource``: where the shards of a source come from, and when they may go again.

A local folder has them all. Another source may fetch a shard when it is first wanted and drop it
once everything made from it is durable.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from hy3.checkpoint.file_hash import FileHash, hash_file
from hy3.checkpoint.reader import TensorReader
from hy3.errors import InputError
from hy3.quantize.resume import FileStamp, stamp_of


class ShardSource(Protocol):
    """Shards by their file names; every method may be called from any thread."""

    def expect(self, shards: Sequence[str], stop: threading.Event) -> None:
        """Called once before the rest: the shards that will be wanted, in this order.

        A shard may be wanted earlier than that, for a weight that shares its scale with another.
        Once ``stop`` is set, ``acquire`` raises where it would wait: the run has failed.
        """

    def acquire(self, shard: str) -> Path:
        """Where the shard lies; blocks until it is there, whole and checked.

        May be called again, also by another thread, as long as the shard was not released.
        """

    def release(self, shard: str) -> None:
        """Called once, when all that is made of the shard is durable and nobody reads it."""

    def check_unchanged(self, name: str) -> None:
        """InputError when a shard, config or index is not the one that was planned with."""

    def file_hash(self, shard: str) -> FileHash:
        """Digest and size of a whole shard, from anywhere that can be trusted."""


class LocalShards:
    """The shards of a folder; nothing is fetched and nothing is dropped."""

    def __init__(self, folder: Path, stamps: dict[str, FileStamp]) -> None:
        """``stamps`` say how each file of the source looked when it was planned with."""
        self.folder, self.stamps = folder, stamps

    def expect(self, shards: Sequence[str], stop: threading.Event) -> None:
        """All are there."""

    def acquire(self, shard: str) -> Path:
        """The path, at once."""
        return self.folder / shard

    def release(self, shard: str) -> None:
        """The user's files stay."""

    def check_unchanged(self, name: str) -> None:
        """By size and time."""
        path = self.folder / name
        try:
            changed = stamp_of(path) != self.stamps[name]
        except OSError:
            changed = True
        if changed:
            raise InputError(
                "changed while it was being read",
                hint="leave the source alone and begin again in an empty folder",
                where=str(path),
            )

    def file_hash(self, shard: str) -> FileHash:
        """By reading it all."""
        return hash_file(self.folder / shard)


class HeldShards:
    """Counts who may read a shard, so that it is released after the last of them."""

    def __init__(self, source: ShardSource, reader: TensorReader) -> None:
        """``reader`` must take its files from ``source.acquire``."""
        self.source, self.reader = source, reader
        self._lock = threading.Lock()
        self._holders: dict[str, int] = {}
        self._done: set[str] = set()

    @contextmanager
    def hold(self, shard: str) -> Generator[None, None, None]:
        """The shard is not released while the context lasts; it is acquired when it is read."""
        with self._lock:
            self._holders[shard] = self._holders.get(shard, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._holders[shard] -= 1
            self._release_unheld(shard)

    def done(self, shard: str) -> None:
        """All that is made of the shard is durable: it goes with its last holder."""
        with self._lock:
            self._done.add(shard)
        self._release_unheld(shard)

    def _release_unheld(self, shard: str) -> None:
        with self._lock:
            free = shard in self._done and not self._holders.get(shard)
            if free:
                self._done.remove(shard)
        if free:
            self.reader.forget(shard)
            self.source.release(shard)

"""Whether a file is what the hub announced; and ``ArrivingFile``, hashed while it is written."""

from __future__ import annotations

import io
import threading
from pathlib import Path

from hy3.errors import InputError
from hy3.hub.repository import HubFile, Repository

_CHUNK_BYTES = 4 * 2**20


class Cancelled(Exception):
    """The work that wanted the file has ended; not an error of the file."""


class WrongContent(Exception):
    """More bytes arrive than the file has."""


class ArrivingFile(io.FileIO):
    """A file that grows at its end; it begins with what an earlier run has left of it.

    It is what the library's download writes to: each write is hashed, and raises Cancelled once
    nobody wants the file any more.
    """

    def __init__(self, path: Path, file: HubFile, cancelled: threading.Event) -> None:
        super().__init__(path, "a+")
        self._file, self._cancelled = file, cancelled
        self.size_bytes = 0
        self._start_over() if self.seek(0, io.SEEK_END) > file.size_bytes else self._hash_again()

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Append all of ``data``."""
        if self._cancelled.is_set():
            raise Cancelled
        if self.size_bytes + len(data) > self._file.size_bytes:
            raise WrongContent
        view = memoryview(data)
        while view:
            count = super().write(view)
            self._hash.update(view[:count])
            self.size_bytes += count
            view = view[count:]
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        """Drop the end, which a server that ignores ranges will send again."""
        kept = super().truncate(size)
        self._hash_again()
        return kept

    @property
    def complete(self) -> bool:
        """Whether all announced bytes are there, and no others."""
        return self.size_bytes == self._file.size_bytes and (
            self._hash.hexdigest() == self._file.digest
        )

    def _start_over(self) -> None:
        self.seek(0)
        self.truncate()

    def _hash_again(self) -> None:
        """Take what is in the file for what has arrived."""
        self._hash, self.size_bytes = self._file.new_hash(), 0
        self.seek(0)
        while chunk := self.read(_CHUNK_BYTES):
            if self._cancelled.is_set():
                raise Cancelled
            self._hash.update(chunk)
            self.size_bytes += len(chunk)


def has_content(path: Path, file: HubFile, cancelled: threading.Event | None = None) -> bool:
    """Whether ``path`` holds exactly the announced bytes."""
    if path.stat().st_size != file.size_bytes:
        return False
    digest = file.new_hash()
    with path.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            if cancelled and cancelled.is_set():
                raise Cancelled
            digest.update(chunk)
    return bool(digest.hexdigest() == file.digest)


def wrong_content(repository: Repository, file: HubFile) -> InputError:
    """The error for a file that arrived wrong twice."""
    return InputError(
        "arrived twice with another size or hash than the hub announces",
        hint="the repository has changed or something in between alters it: try again later, "
        "or name another revision",
        where=repository.where(file.name),
    )

"""Durable files: written beside their name, flushed, renamed, and the folder flushed.

After a crash a name either holds the whole file or the old one. A shard is streamed from planned
shapes, so no more than the caller's current chunk is in memory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from hy3.checkpoint.header import TensorSpec, encode_header
from hy3.checkpoint.page_cache import WriteBehind
from hy3.errors import EnvironmentFault

TEMPORARY_SUFFIX = ".tmp"
_CHUNK_BYTES = 4 * 2**20
_PYTORCH_METADATA = {"format": "pt"}


def temporary_path(path: Path) -> Path:
    """Where a file lies until it is whole."""
    return path.with_name(path.name + TEMPORARY_SUFFIX)


class _DurableFile:
    """One file under construction, with a running SHA-256 of what it holds up to ``end``."""

    def __init__(self, path: Path, keep: bool = False) -> None:
        """``keep`` leaves what the temporary file holds, to be taken over by ``recover``."""
        self.path = path
        self.temporary = temporary_path(path)
        self.end = 0
        self.broken = False  # something may be missing on disk although the cache holds it
        self._leftover = keep  # there may be bytes after ``end``
        self._digest = hashlib.sha256()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if keep else os.O_TRUNC)
        try:
            self._descriptor = os.open(self.temporary, flags, 0o644)
        except OSError as error:
            raise self._fault(error) from error
        self._pages = WriteBehind(self._descriptor)

    def write(self, data: memoryview) -> None:
        self._digest.update(data)
        try:
            self._cut()
            while data:
                count = os.pwrite(self._descriptor, data, self.end)
                self.end += count
                data = data[count:]
        except OSError as error:
            raise self._fault(error) from error
        try:
            self._pages.wrote(self.end)
        except OSError as error:
            self.broken = True
            raise self._fault(error) from error

    def recover(self, nbytes: int, sha256: str) -> bool:
        """Go over the next bytes that are there, if the digest up to their end is ``sha256``."""
        digest, end = self._digest.copy(), self.end + nbytes
        for start in range(self.end, end, _CHUNK_BYTES):
            try:
                chunk = os.pread(self._descriptor, min(_CHUNK_BYTES, end - start), start)
            except OSError:
                return False  # what cannot be read is made again
            digest.update(chunk)
        if digest.hexdigest() != sha256:
            return False
        self._digest, self.end = digest, end
        self._pages = WriteBehind(self._descriptor, end)
        return True

    def sha256(self) -> str:
        """Of all bytes up to ``end``, in hexadecimal."""
        return self._digest.hexdigest()

    def commit(self) -> str:
        """Make the file durable under its name; returns its SHA-256 in hexadecimal."""
        try:
            self._cut()
            os.fsync(self._descriptor)
        except OSError as error:
            self.broken = True
            raise self._fault(error) from error
        try:
            self.close()
            self.temporary.rename(self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._fault(error) from error
        return self.sha256()

    def abandon(self) -> None:
        """Close and remove the temporary file."""
        self.close()
        self.temporary.unlink(missing_ok=True)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _cut(self) -> None:
        """Drop what an earlier writer left and was not recovered."""
        if self._leftover:
            os.ftruncate(self._descriptor, self.end)
            self._leftover = False

    def _fault(self, error: OSError) -> EnvironmentFault:
        return EnvironmentFault(
            f"cannot be written ({error.strerror})",
            hint="check free space and permissions; what is finished is kept",
            where=str(self.temporary),
        )


class ShardWriter:
    """Streams one safetensors file whose tensors are known beforehand.

    Tensors arrive in planned order, whole (``write``) or in pieces (``write_chunk``). Leaving the
    context without ``finish`` removes the temporary file, unless the writer is ``resumable``.
    Another such writer may ``recover`` the first tensors from it before it writes the others.
    """

    def __init__(
        self,
        path: Path,
        tensors: Sequence[TensorSpec],
        metadata: dict[str, str] | None = None,
        resumable: bool = False,
    ) -> None:
        header = encode_header(tensors, _PYTORCH_METADATA if metadata is None else metadata)
        self._pending = [spec for spec in reversed(tensors) if spec.nbytes]
        self._missing_bytes = self._pending[-1].nbytes if self._pending else 0
        self._resumable, self._finished = resumable, False
        self._file = _DurableFile(path, keep=resumable)
        self._recovering = resumable
        if not self._file.recover(len(header), hashlib.sha256(header).hexdigest()):
            self._recovering = False
            self._file.write(memoryview(header))

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._finished:
            return
        if self._resumable and not self._file.broken:
            self._file.close()
        else:
            self._file.abandon()

    def recover(self, nbytes: int, sha256: str) -> bool:
        """Take the next whole tensors, so many bytes, from the file if its SHA-256 is this one.

        ``sha256`` is that of the file up to their end. When they are not taken, or after a write,
        none that follow will be.
        """
        if not self._recovering or not self._file.recover(nbytes, sha256):
            self._recovering = False
            return False
        while nbytes:
            nbytes -= self._missing_bytes
            assert nbytes >= 0, "ends within a tensor"
            self._advance(self._missing_bytes)
        return True

    def write(self, name: str, data: Any) -> None:
        """One whole tensor as a contiguous buffer; it must be the next one planned."""
        view = memoryview(data)
        if view.nbytes:
            assert self._pending and self._pending[-1].name == name, f"{name} is not the next one"
            assert self._missing_bytes == view.nbytes, f"{name} has another size than planned"
            self.write_chunk(view)

    def write_chunk(self, data: Any) -> None:
        """The next bytes of the current tensor, never beyond its end."""
        view = memoryview(data)
        assert view.nbytes <= self._missing_bytes, "more bytes than planned for the tensor"
        if not view.nbytes:  # an empty view cannot be cast
            return
        self._recovering = False
        self._file.write(view.cast("B"))
        self._advance(view.nbytes)

    def sha256(self) -> str:
        """Of the file as it is by now, in hexadecimal."""
        return self._file.sha256()

    def finish(self) -> str:
        """Make the file durable; returns the SHA-256 of the whole file in hexadecimal."""
        assert not self._pending, f"{self._pending[-1].name} was not written"
        digest = self._file.commit()
        self._finished = True
        return digest

    def _advance(self, nbytes: int) -> None:
        self._missing_bytes -= nbytes
        if not self._missing_bytes:
            self._pending.pop()
            self._missing_bytes = self._pending[-1].nbytes if self._pending else 0


def write_file_durably(path: Path, data: bytes) -> str:
    """Write a small file with the same discipline; returns its SHA-256 in hexadecimal."""
    file = _DurableFile(path)
    try:
        file.write(memoryview(data))
        return file.commit()
    except BaseException:
        file.abandon()
        raise


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

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
from hy3.errors import EnvironmentFault

TEMPORARY_SUFFIX = ".tmp"
_PYTORCH_METADATA = {"format": "pt"}


class _DurableFile:
    """One file under construction, with a running SHA-256 of what was written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        self._digest = hashlib.sha256()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self.temporary, flags, 0o644)
        except OSError as error:
            raise self._fault(error) from error

    def write(self, data: memoryview) -> None:
        self._digest.update(data)
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            raise self._fault(error) from error

    def commit(self) -> str:
        """Make the file durable under its name; returns its SHA-256 in hexadecimal."""
        try:
            os.fsync(self._descriptor)
            self._close()
            self.temporary.rename(self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._fault(error) from error
        return self._digest.hexdigest()

    def abandon(self) -> None:
        """Close and remove the temporary file."""
        self._close()
        self.temporary.unlink(missing_ok=True)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _fault(self, error: OSError) -> EnvironmentFault:
        return EnvironmentFault(
            f"cannot be written ({error.strerror})",
            hint="check free space and permissions; what is finished is kept",
            where=str(self.temporary),
        )


class ShardWriter:
    """Streams one safetensors file whose tensors are known beforehand.

    Tensors arrive in planned order, whole (``write``) or in pieces (``write_chunk``). Leaving the
    context without ``finish`` removes the temporary file.
    """

    def __init__(
        self, path: Path, tensors: Sequence[TensorSpec], metadata: dict[str, str] | None = None
    ) -> None:
        header = encode_header(tensors, _PYTORCH_METADATA if metadata is None else metadata)
        self._pending = [spec for spec in reversed(tensors) if spec.nbytes]
        self._missing_bytes = self._pending[-1].nbytes if self._pending else 0
        self._finished = False
        self._file = _DurableFile(path)
        self._file.write(memoryview(header))

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._finished:
            self._file.abandon()

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
        self._file.write(view.cast("B"))
        self._missing_bytes -= view.nbytes
        if not self._missing_bytes:
            self._pending.pop()
            self._missing_bytes = self._pending[-1].nbytes if self._pending else 0

    def finish(self) -> str:
        """Make the file durable; returns the SHA-256 of the whole file in hexadecimal."""
        assert not self._pending, f"{self._pending[-1].name} was not written"
        digest = self._file.commit()
        self._finished = True
        return digest


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

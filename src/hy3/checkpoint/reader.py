"""Bytes of tensors by positioned reads: no mapping, no shared file position, any thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hy3.checkpoint.index import Checkpoint
from hy3.checkpoint.page_cache import ReadAhead, drop_pages
from hy3.errors import InputError

# numpy has no BF16 or FP8: those come back as the unsigned integers of the same width.
_NUMPY_DTYPES: dict[str, str] = {
    "BOOL": "?", "U8": "u1", "I8": "i1",
    "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1", "F8_E4M3FNUZ": "u1", "F8_E5M2FNUZ": "u1",
    "U16": "<u2", "I16": "<i2", "F16": "<f2", "BF16": "<u2",
    "U32": "<u4", "I32": "<i4", "F32": "<f4",
    "U64": "<u8", "I64": "<i8", "F64": "<f8", "C64": "<c8",
}  # fmt: skip


class TensorReader:
    """Reads tensors of one checkpoint; safe to share between threads until it is closed."""

    def __init__(self, checkpoint: Checkpoint, locate: Callable[[str], Path] | None = None) -> None:
        """``locate`` gives the path of a shard when it is first read: in the folder without it."""
        self.checkpoint = checkpoint
        self._locate = locate or (lambda shard: checkpoint.headers[shard].path)
        self._lock = threading.Lock()
        self._descriptors: dict[str, int] = {}

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the shards; no read may be in progress."""
        with self._lock:
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors.clear()

    def forget(self, shard: str) -> None:
        """Close one shard, so that its file may go; no read of it may be in progress."""
        with self._lock:
            descriptor = self._descriptors.pop(shard, -1)
        if descriptor >= 0:
            os.close(descriptor)

    def read_ahead(self, shard: str) -> ReadAhead:
        """To be told of the offsets in the file that a single pass through a shard comes to."""
        return ReadAhead(self._descriptor(shard), self.checkpoint.headers[shard].file_bytes)

    def drop_pages(self, name: str) -> None:
        """Let go of a tensor's pages in the page cache: it will not be wanted soon."""
        start = self.offset(name)
        end = start + self.checkpoint.info(name).nbytes
        drop_pages(self._descriptor(self.checkpoint.tensors[name]), start, end)

    def offset(self, name: str) -> int:
        """Where a tensor begins in its file."""
        header = self.checkpoint.headers[self.checkpoint.tensors[name]]
        return header.data_start + header.tensors[name].start

    def head(self, shard: str) -> bytes:
        """All bytes of a shard before its data section."""
        buffer = bytearray(self.checkpoint.headers[shard].data_start)
        self._fill(shard, "", 0, memoryview(buffer))
        return bytes(buffer)

    def read(self, name: str) -> NDArray[np.uint8]:
        """All bytes of one tensor, in a new writable array of shape [nbytes]."""
        buffer = np.empty(self.checkpoint.info(name).nbytes, dtype=np.uint8)
        self.read_into(name, buffer)
        return buffer

    def read_into(self, name: str, buffer: Any) -> None:
        """Fill a contiguous writable buffer of exactly the tensor's size."""
        view = memoryview(buffer)
        assert view.nbytes == self.checkpoint.info(name).nbytes, name
        if view.nbytes:  # an empty view cannot be cast
            self._fill_tensor(name, 0, view.cast("B"))

    def chunks(self, name: str, chunk_bytes: int) -> Iterator[memoryview]:
        """The tensor's bytes in order, each piece in a buffer of its own."""
        nbytes = self.checkpoint.info(name).nbytes
        for start in range(0, nbytes, chunk_bytes):
            view = np.empty(min(chunk_bytes, nbytes - start), dtype=np.uint8).data
            self._fill_tensor(name, start, view)
            yield view

    def array(self, name: str) -> NDArray[Any]:
        """The tensor with its shape: BF16 as uint16, FP8 as uint8, other dtypes as themselves."""
        info = self.checkpoint.info(name)
        return self.read(name).view(_NUMPY_DTYPES[info.dtype]).reshape(info.shape)

    def _fill_tensor(self, name: str, start: int, view: memoryview) -> None:
        self._fill(self.checkpoint.tensors[name], name, self.offset(name) + start, view)

    def _fill(self, shard: str, name: str, offset: int, view: memoryview) -> None:
        """Bytes of a shard from an offset in the file; ``name`` is for errors."""
        descriptor = self._descriptor(shard)
        done = 0
        while done < view.nbytes:
            try:
                count = os.preadv(descriptor, [view[done:]], offset + done)
            except OSError as error:
                raise self._unreadable(shard, name, offset + done, error.strerror) from error
            if count == 0:
                reason = "the file became shorter while it was read"
                raise self._unreadable(shard, name, offset + done, reason)
            done += count

    def _descriptor(self, shard: str) -> int:
        with self._lock:
            known = self._descriptors.get(shard)
        if known is not None:
            return known
        path = self._locate(shard)  # may fetch it: others must not wait meanwhile
        try:
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(
                f"cannot be opened ({error.strerror})",
                hint="check the path and its permissions",
                where=str(path),
            ) from error
        with self._lock:
            kept = self._descriptors.setdefault(shard, opened)
        if kept != opened:
            os.close(opened)
        return kept

    def _unreadable(self, shard: str, name: str, offset: int, reason: str | None) -> InputError:
        tensor = f"tensor {name!r}: " if name else ""
        return InputError(
            f"cannot be read ({reason})",
            hint="check the disk, then fetch the file again",
            where=f"{self.checkpoint.headers[shard].path}: {tensor}byte {offset}",
        )

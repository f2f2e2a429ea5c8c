"""Bytes of tensors by positioned reads: no mapping, no shared file position, any thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hy3.checkpoint.index import Checkpoint
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

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
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
            self._fill(name, 0, view.cast("B"))

    def chunks(self, name: str, chunk_bytes: int) -> Iterator[memoryview]:
        """The tensor's bytes in order, each piece in a buffer of its own."""
        nbytes = self.checkpoint.info(name).nbytes
        for start in range(0, nbytes, chunk_bytes):
            view = np.empty(min(chunk_bytes, nbytes - start), dtype=np.uint8).data
            self._fill(name, start, view)
            yield view

    def array(self, name: str) -> NDArray[Any]:
        """The tensor with its shape: BF16 as uint16, FP8 as uint8, other dtypes as themselves."""
        info = self.checkpoint.info(name)
        return self.read(name).view(_NUMPY_DTYPES[info.dtype]).reshape(info.shape)

    def _fill(self, name: str, start: int, view: memoryview) -> None:
        shard = self.checkpoint.tensors[name]
        header = self.checkpoint.headers[shard]
        offset = header.data_start + header.tensors[name].start + start
        descriptor = self._descriptor(shard, header.path)
        done = 0
        while done < view.nbytes:
            try:
                count = os.preadv(descriptor, [view[done:]], offset + done)
            except OSError as error:
                reason = error.strerror
                raise _unreadable(header.path, name, offset + done, reason) from error
            if count == 0:
                reason = "the file became shorter while it was read"
                raise _unreadable(header.path, name, offset + done, reason)
            done += count

    def _descriptor(self, shard: str, path: Path) -> int:
        with self._lock:
            if shard not in self._descriptors:
                try:
                    self._descriptors[shard] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as error:
                    raise InputError(
                        f"cannot be opened ({error.strerror})",
                        hint="check the path and its permissions",
                        where=str(path),
                    ) from error
            return self._descriptors[shard]


def _unreadable(path: Path, name: str, offset: int, reason: str | None) -> InputError:
    return InputError(
        f"cannot be read ({reason})",
        hint="check the disk, then fetch the file again",
        where=f"{path}: tensor {name!r}: byte {offset}",
    )

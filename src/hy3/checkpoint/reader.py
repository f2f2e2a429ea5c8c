"""Bytes of tensors by positioned reads: no mapping, no shared file position, any thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hy3.checkpoint.index import Checkpoint
from hy3.checkpoint.page_cache import is_cached
from hy3.errors import InputError

_BLOCK_BYTES = 4096  # a multiple of every disk's
_LEAST_DIRECT_BYTES = 2**18  # below it a disk access costs more than the copy it saves
_DIRECT = getattr(os, "O_DIRECT", 0)
# numpy has no BF16 or FP8: those come back as the unsigned integers of the same width.
_NUMPY_DTYPES: dict[str, str] = {
    "BOOL": "?", "U8": "u1", "I8": "i1",
    "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1", "F8_E4M3FNUZ": "u1", "F8_E5M2FNUZ": "u1",
    "U16": "<u2", "I16": "<i2", "F16": "<f2", "BF16": "<u2",
    "U32": "<u4", "I32": "<i4", "F32": "<f4",
    "U64": "<u8", "I64": "<i8", "F64": "<f8", "C64": "<c8",
}  # fmt: skip


class _File:
    """An open shard, a second time for reads past the page cache if they are wanted."""

    def __init__(self, path: Path, once: bool) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._direct = -1
        if once and not is_cached(self.descriptor, os.fstat(self.descriptor).st_size):
            with suppress(OSError):  # not every file system has it
                self._direct = os.open(path, os.O_RDONLY | os.O_CLOEXEC | _DIRECT)

    def read_blocks(self, offset: int, room: memoryview) -> int:
        """Fill as many whole blocks as can be read past the cache; returns the bytes."""
        done = 0
        if self._direct < 0 or room.nbytes < _LEAST_DIRECT_BYTES:
            return done
        with suppress(OSError):
            while done < room.nbytes:
                count = os.preadv(self._direct, [room[done:]], offset + done)
                done += count
                if count % _BLOCK_BYTES or not count:  # the file ends
                    break
        return done

    def close(self) -> None:
        """No read may be in progress."""
        os.close(self.descriptor)
        if self._direct >= 0:
            os.close(self._direct)


class TensorReader:
    """Reads tensors of one checkpoint; safe to share between threads until it is closed."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        locate: Callable[[str], Path] | None = None,
        once: bool = False,
    ) -> None:
        """
        Args:
            locate: gives the path of a shard when it is first read; in the folder without it
            once: shards that are not in the page cache are read past it where they can be, which
                costs a tenth of the processor time and pushes nothing out
        """
        self.checkpoint = checkpoint
        self._locate = locate or (lambda shard: checkpoint.headers[shard].path)
        self._once = once
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}

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
        for shard in list(self._files):
            self.forget(shard)

    def forget(self, shard: str) -> None:
        """Close one shard, so that its file may go; no read of it may be in progress."""
        with self._lock:
            file = self._files.pop(shard, None)
        if file:
            file.close()

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
        return self.piece(name, 0, self.checkpoint.info(name).nbytes)

    def piece(self, name: str, start: int, nbytes: int) -> NDArray[np.uint8]:
        """Some bytes of a tensor, from the ``start``-th, in a new writable array."""
        shard, offset = self.checkpoint.tensors[name], self.offset(name) + start
        # Room for whole blocks around the bytes, from an address that is a multiple of a block.
        lead = offset % _BLOCK_BYTES
        span = -(-(lead + nbytes) // _BLOCK_BYTES) * _BLOCK_BYTES
        room = np.empty(span + _BLOCK_BYTES, np.uint8)
        room = room[-room.ctypes.data % _BLOCK_BYTES :][:span]
        done = self._file(shard).read_blocks(offset - lead, room.data) - lead if nbytes else 0
        found = room[lead : lead + nbytes]
        # Anything that went wrong goes wrong again here, and is said.
        self._fill(shard, name, offset + max(done, 0), found[max(done, 0) :].data)
        return found

    def chunks(self, name: str, chunk_bytes: int) -> Iterator[memoryview]:
        """The tensor's bytes in order, each piece in a buffer of its own."""
        nbytes = self.checkpoint.info(name).nbytes
        for start in range(0, nbytes, chunk_bytes):
            yield self.piece(name, start, min(chunk_bytes, nbytes - start)).data

    def array(self, name: str) -> NDArray[Any]:
        """The tensor with its shape: BF16 as uint16, FP8 as uint8, other dtypes as themselves."""
        info = self.checkpoint.info(name)
        return self.read(name).view(_NUMPY_DTYPES[info.dtype]).reshape(info.shape)

    def _fill(self, shard: str, name: str, offset: int, view: memoryview) -> None:
        """Bytes of a shard from an offset in the file; ``name`` is for errors."""
        descriptor = self._file(shard).descriptor
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

    def _file(self, shard: str) -> _File:
        with self._lock:
            known = self._files.get(shard)
        if known is not None:
            return known
        path = self._locate(shard)  # may fetch it: others must not wait meanwhile
        try:
            opened = _File(path, self._once)
        except OSError as error:
            raise InputError(
                f"cannot be opened ({error.strerror})",
                hint="check the path and its permissions",
                where=str(path),
            ) from error
        with self._lock:
            kept = self._files.setdefault(shard, opened)
        if kept is not opened:
            opened.close()
        return kept

    def _unreadable(self, shard: str, name: str, offset: int, reason: str | None) -> InputError:
        tensor = f"tensor {name!r}: " if name else ""
        return InputError(
            f"cannot be read ({reason})",
            hint="check the disk, then fetch the file again",
            where=f"{self.checkpoint.headers[shard].path}: {tensor}byte {offset}",
        )

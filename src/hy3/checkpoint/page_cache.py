"""Keeps the page cache small while large files stream through it.

Written pages go to the disk in windows, one under way while the next one fills; then they are
dropped. So a writer has at most two windows of dirty pages, and other users of the memory, such as
a model in the unified memory of a GB10, keep theirs. What is read once passes it by: see
``TensorReader``. Where the system lacks the calls, nothing is done.
"""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

WINDOW_BYTES = 32 * 2**20
_WAIT_BEFORE, _START, _WAIT_AFTER = 1, 2, 4
_LIBC = ctypes.CDLL(None, use_errno=True)
_MINCORE = getattr(_LIBC, "mincore", None)
if _MINCORE is not None:
    _MINCORE.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_SYNC_FILE_RANGE = getattr(_LIBC, "sync_file_range", None)
if _SYNC_FILE_RANGE is not None:
    _SYNC_FILE_RANGE.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class WriteBehind:
    """Paces one file that grows at its end."""

    def __init__(self, descriptor: int, start: int = 0) -> None:
        self._descriptor = descriptor
        self._under_way = self._filling = start  # where the two windows begin

    def wrote(self, end: int) -> None:
        """The file now ends at ``end``; blocks while the disk is more than a window behind.

        Raises:
            OSError: earlier writes did not reach the disk.
        """
        if end - self._filling < WINDOW_BYTES:
            return
        _sync_range(self._descriptor, self._filling, end, _START)
        _sync_range(
            self._descriptor, self._under_way, self._filling, _WAIT_BEFORE | _START | _WAIT_AFTER
        )
        drop_pages(self._descriptor, self._under_way, self._filling)
        self._under_way, self._filling = self._filling, end


def is_cached(descriptor: int, nbytes: int) -> bool:
    """Whether most of a file lies in the page cache; never, where that cannot be said."""
    if _MINCORE is None or not nbytes:
        return False
    pages = np.empty(-(-nbytes // mmap.PAGESIZE), np.uint8)
    with mmap.mmap(descriptor, nbytes, prot=mmap.PROT_READ) as mapped:
        data = np.frombuffer(mapped, np.uint8)
        known = not _MINCORE(data.ctypes.data, nbytes, pages.ctypes.data)
        del data  # it would keep the mapping open
    return known and 2 * int((pages & 1).sum()) > pages.size


def drop_pages(descriptor: int, start: int, end: int) -> None:
    """Let go of the clean pages of a part of a file."""
    if hasattr(os, "posix_fadvise") and end > start:
        os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)


def _sync_range(descriptor: int, start: int, end: int, flags: int) -> None:
    # Neither the size nor the place of the data becomes durable by this: the fsync does that.
    if _SYNC_FILE_RANGE is None or end <= start:
        return
    if _SYNC_FILE_RANGE(descriptor, start, end - start, flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

"""Keeps the page cache small, and the disk busy, while large files stream through it.

Read pages are asked for ahead, so that the disk reads while the caller computes, and dropped
behind. Written pages go to the disk in windows, one under way while the next one fills; then they
are dropped. So a writer has at most two windows of dirty pages, and other users of the memory, such
as a model in the unified memory of a GB10, keep theirs. Where the system lacks the calls, nothing
is done.
"""

from __future__ import annotations

import ctypes
import os

WINDOW_BYTES = 32 * 2**20
_WAIT_BEFORE, _START, _WAIT_AFTER = 1, 2, 4
_LIBC = ctypes.CDLL(None, use_errno=True)
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


class ReadAhead:
    """Goes with a reader that passes once through a file."""

    def __init__(self, descriptor: int, end: int) -> None:
        self._descriptor, self._end = descriptor, end
        self._asked = self._dropped = 0  # up to where

    def at(self, offset: int) -> None:
        """The reader has come to ``offset``."""
        wanted = min(offset + 2 * WINDOW_BYTES, self._end)
        if wanted - self._asked >= WINDOW_BYTES or wanted == self._end != self._asked:
            _advise(self._descriptor, self._asked, wanted, "POSIX_FADV_WILLNEED")
            self._asked = wanted
        if offset - self._dropped >= 2 * WINDOW_BYTES:
            drop_pages(self._descriptor, self._dropped, offset - WINDOW_BYTES)
            self._dropped = offset - WINDOW_BYTES


def drop_pages(descriptor: int, start: int, end: int) -> None:
    """Let go of the clean pages of a part of a file."""
    _advise(descriptor, start, end, "POSIX_FADV_DONTNEED")


def _advise(descriptor: int, start: int, end: int, advice: str) -> None:
    if hasattr(os, "posix_fadvise") and end > start:
        os.posix_fadvise(descriptor, start, end - start, getattr(os, advice))


def _sync_range(descriptor: int, start: int, end: int, flags: int) -> None:
    # Neither the size nor the place of the data becomes durable by this: the fsync does that.
    if _SYNC_FILE_RANGE is None or end <= start:
        return
    if _SYNC_FILE_RANGE(descriptor, start, end - start, flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

"""``ReadAhead``: a shard's pieces in their order, the next one read while one is in use."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from hy3.checkpoint.header import TensorInfo
from hy3.checkpoint.reader import TensorReader


@dataclass(frozen=True)
class Piece:
    """Some bytes of a tensor; ``start`` counts from its first."""

    name: str
    start: int
    nbytes: int


def pieces_of(info: TensorInfo, most_bytes: int) -> list[Piece]:
    """A tensor cut into pieces of at most so many bytes."""
    starts = range(0, info.nbytes, most_bytes)
    return [Piece(info.name, start, min(most_bytes, info.nbytes - start)) for start in starts]


class ReadAhead:
    """One thread that reads for another; two pieces are in memory, and what was fetched early."""

    def __init__(self, reader: TensorReader, pieces: Sequence[Piece]) -> None:
        self._reader = reader
        self._following = dict(pairwise(pieces))
        self._ahead = set(pieces)  # not taken yet
        self._coming: dict[Piece, Future[NDArray[np.uint8]]] = {}
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def take(self, piece: Piece) -> NDArray[np.uint8]:
        """The bytes of a piece, the caller's from now on; starts to read the one that follows."""
        self._read(piece)
        if piece in self._following:
            self._read(self._following[piece])
        self._ahead.discard(piece)
        return self._coming.pop(piece).result()

    def peek(self, piece: Piece) -> NDArray[np.uint8] | None:
        """The bytes of a piece that is read already, which will be taken later; or None."""
        coming = self._coming.get(piece)
        return coming.result() if coming else None

    def fetch(self, piece: Piece) -> NDArray[np.uint8] | None:
        """The bytes of a piece that will be taken later, read now if need be; None for others."""
        if piece in self._ahead:
            self._read(piece)
        return self.peek(piece)

    def _read(self, piece: Piece) -> None:
        if piece not in self._coming:
            self._coming[piece] = self._thread.submit(
                self._reader.piece, piece.name, piece.start, piece.nbytes
            )

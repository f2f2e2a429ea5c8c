"""Pieces come in order and whole, one read ahead; past the page cache or through it alike."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hy3.checkpoint.header import TensorInfo, TensorSpec
from hy3.checkpoint.index import Checkpoint, open_checkpoint
from hy3.checkpoint.page_cache import is_cached
from hy3.checkpoint.reader import TensorReader
from hy3.checkpoint.writer import ShardWriter
from hy3.errors import InputError
from hy3.quantize.read_ahead import Piece, ReadAhead, pieces_of

SIZES = {"a": 10, "b": 700_003, "c": 0, "d": 5_000_000, "e": 300_000}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    chance = np.random.default_rng(4)
    specs = [TensorSpec(name, "U8", (size,)) for name, size in SIZES.items()]
    with ShardWriter(tmp_path / "model.safetensors", specs) as writer:
        for spec in specs:
            writer.write(spec.name, chance.integers(0, 256, spec.nbytes, np.uint8))
        writer.finish()
    return open_checkpoint(tmp_path)


def drop_cache(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def whole(checkpoint: Checkpoint) -> dict[str, bytes]:
    header = checkpoint.headers["model.safetensors"]
    data = header.path.read_bytes()[header.data_start :]
    return {name: data[info.start : info.end] for name, info in header.tensors.items()}


@pytest.mark.parametrize("cached", [True, False])
def test_every_piece_at_every_alignment(checkpoint: Checkpoint, cached: bool) -> None:
    expected, path = whole(checkpoint), checkpoint.path("a")
    if not cached:
        drop_cache(path)
    with TensorReader(checkpoint, once=True) as reader:
        for name, data in expected.items():
            assert reader.read(name).tobytes() == data
            assert reader.read(name).flags.writeable
            for start in (0, 1, 4095, 4096, 300_001):
                for nbytes in (1, 262_144, len(data) - start):
                    if 0 < nbytes <= len(data) - start:
                        found = reader.piece(name, start, nbytes).tobytes()
                        assert found == data[start : start + nbytes]


def test_reading_once_leaves_the_cache_alone(checkpoint: Checkpoint) -> None:
    path = checkpoint.path("a")
    size = path.stat().st_size
    descriptor = os.open(path, os.O_RDONLY)
    try:
        drop_cache(path)
        if is_cached(descriptor, size):
            pytest.skip("this file system lives in memory")
        with TensorReader(checkpoint, once=True) as reader:
            reader.read("d")
        assert not is_cached(descriptor, size)
        with TensorReader(checkpoint) as reader:
            reader.read("d")
        assert is_cached(descriptor, size)
    finally:
        os.close(descriptor)


def test_pieces_come_in_order_and_again(checkpoint: Checkpoint) -> None:
    expected = whole(checkpoint)
    infos = checkpoint.headers["model.safetensors"].tensors.values()
    pieces = [piece for info in infos for piece in pieces_of(info, 400_000)]
    assert [piece.nbytes for piece in pieces if piece.name == "b"] == [400_000, 300_003]
    assert not pieces_of(TensorInfo("c", "U8", (0,), 0, 0), 7)
    with TensorReader(checkpoint) as reader, ReadAhead(reader, pieces) as ahead:
        for piece in pieces:
            data = expected[piece.name][piece.start : piece.start + piece.nbytes]
            for _ in range(2):  # what could not be used is taken again
                assert ahead.take(piece).tobytes() == data


def test_only_the_next_piece_can_be_looked_at(checkpoint: Checkpoint) -> None:
    one, two, three = (Piece(name, 0, SIZES[name]) for name in "bde")
    with TensorReader(checkpoint) as reader, ReadAhead(reader, [one, two, three]) as ahead:
        assert ahead.peek(one) is None
        ahead.take(one)
        seen = ahead.peek(two)
        assert seen is not None and ahead.peek(three) is None
        assert ahead.take(two) is seen
        assert ahead.peek(two) is None


def test_an_error_comes_with_its_piece(checkpoint: Checkpoint) -> None:
    path, start = checkpoint.path("e"), checkpoint.headers["model.safetensors"].data_start
    os.truncate(path, start + SIZES["a"] + SIZES["b"] + 1000)
    one, two = (Piece(name, 0, SIZES[name]) for name in "bd")
    with TensorReader(checkpoint, once=True) as reader, ReadAhead(reader, [one, two]) as ahead:
        assert ahead.take(one).size == SIZES["b"]
        with pytest.raises(InputError, match="became shorter") as caught:
            ahead.take(two)
    assert "tensor 'd'" in caught.value.where

"""Reader and writer: bytes in both directions, durability, and the safetensors package as peer."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from hy3.checkpoint import writer as writer_module
from hy3.checkpoint.header import TensorSpec, read_header
from hy3.checkpoint.index import open_checkpoint
from hy3.checkpoint.reader import TensorReader
from hy3.checkpoint.writer import ShardWriter, write_file_durably
from hy3.errors import EnvironmentFault, InputError

SPECS = [
    TensorSpec("f", "F32", (2, 3)),
    TensorSpec("none", "F32", (0, 4)),
    TensorSpec("b", "BF16", (5,)),
    TensorSpec("u", "U8", (7,)),
    TensorSpec("e", "F8_E4M3", (3,)),
    TensorSpec("scalar", "U8", ()),
]


def values(spec: TensorSpec) -> np.ndarray:
    generator = np.random.default_rng(len(spec.name) + spec.nbytes)
    return generator.integers(0, 256, spec.nbytes, dtype=np.uint8)


def write_all(path: Path) -> str:
    with ShardWriter(path, SPECS) as shard:
        for spec in SPECS:
            shard.write(spec.name, values(spec))
        return shard.finish()


def test_round_trip_and_hash(tmp_path):
    path = tmp_path / "model.safetensors"
    digest = write_all(path)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert os.listdir(tmp_path) == [path.name]
    checkpoint = open_checkpoint(tmp_path)
    assert [info.spec for info in checkpoint.headers[path.name].tensors.values()] == SPECS
    with TensorReader(checkpoint) as reader:
        for spec in SPECS:
            assert np.array_equal(reader.read(spec.name), values(spec))
            assert b"".join(reader.chunks(spec.name, 4)) == values(spec).tobytes()
            assert reader.array(spec.name).shape == spec.shape
        assert reader.array("f").dtype == np.float32
        assert reader.array("b").dtype == np.uint16
        assert reader.array("e").dtype == np.uint8


def test_chunks_give_the_same_file(tmp_path):
    whole = write_all(tmp_path / "a.safetensors")
    with ShardWriter(tmp_path / "b.safetensors", SPECS) as shard:
        for spec in SPECS:
            data = values(spec)
            for start in range(0, len(data), 3):
                shard.write_chunk(data[start : start + 3])
        assert shard.finish() == whole


def test_safetensors_reads_what_we_write(tmp_path):
    path = tmp_path / "x.safetensors"
    write_all(path)
    raw = path.read_bytes()
    found = dict(safetensors.deserialize(raw))
    assert found.keys() == {spec.name for spec in SPECS}
    for spec in SPECS:
        assert set(found[spec.name]) == {"shape", "dtype", "data"}
        assert tuple(found[spec.name]["shape"]) == spec.shape
        assert bytes(found[spec.name]["data"]) == values(spec).tobytes()
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"format": "pt"}


def test_torch_opens_every_dtype_we_write(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    path = tmp_path / "x.safetensors"
    write_all(path)
    with safetensors.safe_open(path, "pt") as file:
        for spec in SPECS:
            tensor = file.get_tensor(spec.name)
            data = (
                tensor.reshape(-1).view(torch.uint8).numpy() if spec.nbytes else np.empty(0, "u1")
            )
            assert np.array_equal(data, values(spec)), spec.name


def test_we_read_what_safetensors_writes(tmp_path):
    generator = np.random.default_rng(0)
    arrays = {
        "a": generator.standard_normal((3, 4)).astype(np.float32),
        "b.é": generator.integers(0, 255, (5,), dtype=np.uint8),
        "c": np.zeros((2, 0), np.float16),
        "d": np.array(3.5, np.float64),
    }
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors", {"who": "peer"})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.headers["model.safetensors"].metadata == {"who": "peer"}
    with TensorReader(checkpoint) as reader:
        assert set(checkpoint.tensors) == set(arrays)
        for name, array in arrays.items():
            assert np.array_equal(reader.array(name), array)


def test_reader_is_shared_between_threads(tmp_path):
    write_all(tmp_path / "model.safetensors")
    with TensorReader(open_checkpoint(tmp_path)) as reader, ThreadPoolExecutor(8) as pool:
        names = [spec.name for spec in SPECS] * 50
        results = list(pool.map(lambda name: reader.read(name).tobytes(), names))
    expected = {spec.name: values(spec).tobytes() for spec in SPECS}
    assert results == [expected[name] for name in names]


def test_a_shard_cut_while_it_is_read(tmp_path):
    path = tmp_path / "model.safetensors"
    write_all(path)
    with TensorReader(open_checkpoint(tmp_path)) as reader:
        size = path.stat().st_size
        os.truncate(path, size - 2)
        with pytest.raises(InputError, match="became shorter") as caught:
            reader.read("e")
        assert caught.value.where == f"{path}: tensor 'e': byte {size - 2}"


def test_leaving_without_finish_removes_the_temporary_file(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), ShardWriter(path, SPECS) as shard:
        shard.write("f", values(SPECS[0]))
        raise RuntimeError
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == [path.name]


def test_misuse_is_an_invariant(tmp_path):
    with ShardWriter(tmp_path / "x.safetensors", SPECS) as shard:
        with pytest.raises(AssertionError, match="not the next"):
            shard.write("b", values(SPECS[2]))
        with pytest.raises(AssertionError, match="more bytes"):
            shard.write_chunk(bytes(25))
        with pytest.raises(AssertionError, match="f was not written"):
            shard.finish()


def test_order_of_durability(tmp_path, monkeypatch):
    """fsync of the file, then rename, then fsync of the folder: observed, not assumed."""
    calls = []
    real_fsync, real_rename = os.fsync, Path.rename

    def fsync(descriptor):
        calls.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        real_fsync(descriptor)

    def rename(self, target):
        calls.append("rename")
        return real_rename(self, target)

    monkeypatch.setattr(writer_module.os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    write_all(tmp_path / "x.safetensors")
    assert calls == ["file", "rename", "folder"]


def test_full_disk_is_an_environment_fault(tmp_path, monkeypatch):
    def full(descriptor, data, offset):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer_module.os, "pwrite", full)
    with pytest.raises(EnvironmentFault, match="No space left"):
        write_file_durably(tmp_path / "x.json", b"{}")
    assert os.listdir(tmp_path) == []
    with pytest.raises(EnvironmentFault, match="No such file"):
        write_file_durably(tmp_path / "none" / "x.json", b"{}")


def test_small_file(tmp_path):
    digest = write_file_durably(tmp_path / "x.json", b"{}")
    assert digest == hashlib.sha256(b"{}").hexdigest()
    assert (tmp_path / "x.json").read_bytes() == b"{}" and len(os.listdir(tmp_path)) == 1


def test_a_large_tensor_is_streamed(tmp_path):
    """64 MiB in 1 MiB chunks raises the peak by far less than the shard."""
    import tracemalloc

    spec = TensorSpec("w", "U8", (64 * 2**20,))
    chunk = bytes(2**20)
    tracemalloc.start()
    with ShardWriter(tmp_path / "model.safetensors", [spec]) as shard:
        for _ in range(64):
            shard.write_chunk(chunk)
        shard.finish()
    with TensorReader(open_checkpoint(tmp_path)) as reader:
        total = sum(len(view) for view in reader.chunks("w", 2**20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == spec.nbytes and peak < 4 * 2**20
    assert read_header(tmp_path / "model.safetensors").tensors["w"].nbytes == spec.nbytes

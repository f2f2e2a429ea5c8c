"""Index and shards must agree; each disagreement is an error of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hy3.checkpoint.header import TensorSpec, encode_header
from hy3.checkpoint.index import INDEX_NAME, SINGLE_NAME, open_checkpoint
from hy3.errors import InputError


def shard(folder: Path, name: str, *tensors: str) -> None:
    specs = [TensorSpec(tensor, "U8", (2,)) for tensor in tensors]
    (folder / name).write_bytes(encode_header(specs, {}) + b"ab" * len(specs))


def index(folder: Path, weight_map: object, **more: object) -> None:
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map, **more}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shard(tmp_path, "b.safetensors", "x", "y")
    shard(tmp_path, "a.safetensors", "z")
    weight_map = {"x": "b.safetensors", "y": "b.safetensors", "z": "a.safetensors"}
    index(tmp_path, weight_map, metadata={"total_size": 6})
    return tmp_path


def test_reads_sorted_shards(folder):
    checkpoint = open_checkpoint(folder)
    assert list(checkpoint.headers) == ["a.safetensors", "b.safetensors"]
    assert checkpoint.tensors == {"z": "a.safetensors", "x": "b.safetensors", "y": "b.safetensors"}
    assert checkpoint.info("y").start == 2 and checkpoint.path("y").name == "b.safetensors"
    assert checkpoint.total_bytes == 6 == checkpoint.declared_bytes


def test_a_lone_file_needs_no_index(tmp_path):
    shard(tmp_path, SINGLE_NAME, "x")
    assert open_checkpoint(tmp_path).tensors == {"x": SINGLE_NAME}


def test_symlinked_shards_are_read(folder, tmp_path):
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (folder / "a.safetensors").rename(blobs / "0")
    (folder / "a.safetensors").symlink_to(blobs / "0")
    assert open_checkpoint(folder).total_bytes == 6


def expect(folder: Path, message: str, *where: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        open_checkpoint(folder)
    assert caught.value.hint
    for part in where:
        assert part in caught.value.where


def test_missing_shard(folder):
    (folder / "a.safetensors").unlink()
    expect(folder, "names the shard 'a.safetensors', which is missing", INDEX_NAME)


def test_missing_tensor(folder):
    index(folder, {"x": "b.safetensors", "q": "b.safetensors", "z": "a.safetensors"})
    expect(folder, "places it in b.safetensors, which does not hold it", "tensor 'q'")


def test_tensor_in_another_shard(folder):
    index(folder, {"x": "b.safetensors", "y": "a.safetensors", "z": "a.safetensors"})
    expect(folder, "places it in a.safetensors", "tensor 'y'")


def test_tensor_not_in_the_index(folder):
    index(folder, {"x": "b.safetensors", "z": "a.safetensors"})
    expect(folder, "is not named in", "b.safetensors: tensor 'y': byte ")


def test_shard_not_in_the_index(folder):
    shard(folder, "stray.safetensors", "w")
    expect(folder, "is not named in", "stray.safetensors")


def test_tensor_stored_twice(folder):
    shard(folder, "b.safetensors", "x", "y", "z")
    expect(folder, "is stored in a.safetensors as well", "b.safetensors: tensor 'z': byte ")


@pytest.mark.parametrize(
    "name",
    [
        *("../b.safetensors", "/etc/b.safetensors", "sub/b.safetensors", "..\\b.safetensors"),
        *("C:b.safetensors", ".b.safetensors", "b.safetensors\x00", "b\n.safetensors", "b.bin", ""),
        *(3, None),
    ],
)
def test_path_traversal(folder, name):
    index(folder, {"x": name, "y": "b.safetensors", "z": "a.safetensors"})
    expect(folder, "not the plain name", INDEX_NAME, "tensor 'x'")


@pytest.mark.parametrize("weight_map", [None, [], {}, "x"])
def test_no_weight_map(folder, weight_map):
    index(folder, weight_map)
    expect(folder, "has no weight_map")


def test_duplicate_key_in_the_index(folder):
    text = '{"weight_map": {"x": "a.safetensors", "x": "b.safetensors"}}'
    (folder / INDEX_NAME).write_text(text)
    expect(folder, "has the key 'x' twice in the entry 'weight_map'", INDEX_NAME, "byte 1")


def test_bad_json_in_the_index(folder):
    (folder / INDEX_NAME).write_text('{"weight_map": ')
    expect(folder, "is not valid JSON", "byte 15")


def test_no_index_and_no_lone_file(folder, tmp_path):
    (folder / INDEX_NAME).unlink()
    expect(folder, "has 2 shards but neither")
    empty = tmp_path / "empty"
    empty.mkdir()
    expect(empty, "has no shard but neither")
    expect(tmp_path / "none", "is not a folder")


def test_a_damaged_shard_is_named(folder):
    with (folder / "b.safetensors").open("r+b") as file:
        file.truncate(20)
    expect(folder, "the file ends at 20", "b.safetensors")

"""Every unsound header is refused with its own message, naming file, tensor and byte offset."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hy3.checkpoint.header import MAX_HEADER_BYTES, TensorSpec, encode_header, read_header
from hy3.errors import InputError


def write(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    prefix = (len(raw) if length is None else length).to_bytes(8, "little")
    path.write_bytes(prefix + raw + data)
    return path


def entry(start: int, end: int, dtype: str = "U8", shape: list | None = None) -> dict:
    shape = [end - start] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_reads_in_data_order(tmp_path):
    header = {"__metadata__": {"format": "pt"}, "b": entry(4, 8), "a": entry(0, 4, "F32", [1])}
    read = read_header(write(tmp_path / "x.safetensors", header, bytes(8)))
    assert list(read.tensors) == ["a", "b"]
    assert read.tensors["a"].dtype == "F32" and read.tensors["a"].shape == (1,)
    assert read.tensors["b"].nbytes == 4
    assert read.metadata == {"format": "pt"}
    assert read.file_bytes == read.data_start + 8


def test_scalar_and_empty_tensors(tmp_path):
    header = {"s": entry(0, 4, "F32", []), "e": entry(4, 4, "F32", [0, 7])}
    read = read_header(write(tmp_path / "x.safetensors", header, bytes(4)))
    assert read.tensors["s"].nbytes == 4 and read.tensors["e"].nbytes == 0


TWICE = b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{}}'
INNER = b'{"w":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
# header, data, expected message, expected tensor, expected byte offset
REJECTED = [
    (b"{not json", b"", "not valid JSON", "", 9),
    (b"\xff\xfe{}", b"", "not valid UTF-8", "", 8),
    (b"[]", b"", "JSON list, not an object", "", 8),
    (b'{"w":NaN}', b"", "NaN is not JSON", "", 8),
    (b'{"w":' + b"[" * 100_000, b"", "nested more than 100 levels", "", 8),
    (b'{"w":' + b"9" * 5000 + b"}", b"", "too many digits", "", 8),
    (TWICE, b"x", "has the key 'w' twice", "w", 8 + TWICE.rindex(b'"w"')),
    (INNER, b"x", "has the key 'dtype' twice in the entry 'w'", "w", 9),
    (rb'{"__metadata__":{"a":"\udc00"}}', b"", "half of a surrogate pair", "", 8),
    ({"__metadata__": []}, b"", "__metadata__ is not an object", "__metadata__", 9),
    ({"__metadata__": {"a": 1}}, b"", "value of 'a' is not a string", "__metadata__", 9),
    ({"w\n": entry(0, 1)}, b"x", "control characters", "w\n", 9),
    ({"w": 3}, b"", "exactly dtype, shape and data_offsets", "w", 9),
    ({"w": {**entry(0, 1), "more": 1}}, b"x", "exactly dtype, shape", "w", 9),
    ({"w": entry(0, 1, "F7")}, b"x", "unknown dtype 'F7'", "w", 9),
    ({"w": entry(0, 1, ["U8"])}, b"x", "unknown dtype ['U8']", "w", 9),
    ({"w": entry(0, 1, shape=[-1])}, b"x", "not a list of sizes", "w", 9),
    ({"w": entry(0, 1, shape=[True])}, b"x", "not a list of sizes", "w", 9),
    ({"w": entry(0, 1, shape=[1.0])}, b"x", "not a list of sizes", "w", 9),
    ({"w": entry(0, 1, shape="1")}, b"x", "not a list of sizes", "w", 9),
    ({"w": {**entry(0, 1), "data_offsets": [0]}}, b"x", "not a pair", "w", 9),
    ({"w": {**entry(0, 1), "data_offsets": [-1, 0]}}, b"x", "not a pair", "w", 9),
    ({"w": {**entry(0, 1), "data_offsets": [1, 0]}}, b"x", "end before they start", "w", 9),
    ({"w": entry(0, 4, "F32", [2])}, bytes(4), "needs 8 bytes, data_offsets give 4", "w", 9),
    ({"w": entry(0, 4, "F32", [2**40] * 900)}, bytes(4), "overflows", "w", 9),
    ({"w": entry(0, 9)}, bytes(4), "outside the data section of 4 bytes", "w", None),
    ({"a": entry(0, 4), "b": entry(2, 6)}, bytes(6), "overlaps the tensor before", "b", None),
    ({"a": entry(0, 4), "b": entry(0, 4)}, bytes(4), "overlaps the tensor before", "b", None),
    ({"a": entry(0, 4), "b": entry(6, 8)}, bytes(8), "leaves a hole of 2 bytes", "b", None),
    ({"a": entry(2, 4)}, bytes(4), "leaves a hole of 2 bytes", "a", None),
    ({"a": entry(0, 4)}, bytes(7), "3 bytes after the last tensor", "a", None),
]


@pytest.mark.parametrize(("header", "data", "message", "tensor", "offset"), REJECTED)
def test_rejected(tmp_path, header, data, message, tensor, offset):
    path = write(tmp_path / "x.safetensors", header, data)
    with pytest.raises(InputError) as caught:
        read_header(path)
    error = caught.value
    assert message in error.message
    assert error.where.startswith(str(path)) and error.hint
    if tensor:
        assert f"tensor {tensor!r}" in error.where
    if offset is not None:
        assert error.where.endswith(f"byte {offset}")


def test_offset_of_a_data_fault_is_absolute(tmp_path):
    path = write(tmp_path / "x.safetensors", {"a": entry(0, 4), "b": entry(6, 8)}, bytes(8))
    data_start = path.stat().st_size - 8
    with pytest.raises(InputError) as caught:
        read_header(path)
    assert caught.value.where == f"{path}: tensor 'b': byte {data_start + 6}"


@pytest.mark.parametrize(
    ("length", "size", "message"),
    [
        (0, 3, "holds 3 bytes, too few"),
        (100, 50, "announces a header of 100 bytes but the file ends at 50"),
        (2**63, 50, "the format allows"),
        (MAX_HEADER_BYTES + 1, MAX_HEADER_BYTES + 100, "the format allows"),
    ],
)
def test_length_is_checked_before_it_is_believed(tmp_path, length, size, message):
    path = tmp_path / "x.safetensors"
    path.write_bytes(length.to_bytes(8, "little")[:size])
    os.truncate(path, size)  # sparse: no disk is used
    with pytest.raises(InputError, match=message) as caught:
        read_header(path)
    assert caught.value.where == f"{path}: byte 0"


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_header(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match="is not a regular file"):
        read_header(tmp_path)


def test_encode_is_padded_and_reads_back(tmp_path):
    specs = [
        TensorSpec("ä", "BF16", (3, 4)),
        TensorSpec("b", "F32", ()),
        TensorSpec("c", "U8", (0,)),
    ]
    raw = encode_header(specs, {"format": "pt"})
    assert len(raw) % 8 == 0 and int.from_bytes(raw[:8], "little") == len(raw) - 8
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw + bytes(28))
    read = read_header(path)
    assert [info.spec for info in read.tensors.values()] == specs
    assert read.data_start == len(raw)


def test_encode_refuses_misaligned_tensors():
    with pytest.raises(InputError, match="would start at byte 3"):
        encode_header([TensorSpec("a", "U8", (3,)), TensorSpec("b", "F32", (1,))], {})

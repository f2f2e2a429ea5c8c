"""Arbitrary and damaged headers give an InputError or a sound header: never a crash."""

from __future__ import annotations

import json
import tracemalloc

import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hy3.checkpoint.header import TensorSpec, encode_header, read_header
from hy3.errors import InputError

RELAXED = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SPECS = [
    TensorSpec("a.weight", "BF16", (4, 4)),
    TensorSpec("b.weight_packed", "U8", (4, 2)),
    TensorSpec("b.weight_scale", "F8_E4M3", (4,)),
    TensorSpec("b.weight_global_scale", "F32", (1,)),
]
GOOD = encode_header(SPECS, {"format": "pt"}) + bytes(range(48))

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "F32", "BF16", "F8_E4M3", "??"]) | json_values,
        "shape": st.lists(st.integers(-1, 2**64), max_size=4) | json_values,
        "data_offsets": st.lists(st.integers(-1, 64), min_size=2, max_size=2) | json_values,
    }
)


def check(tmp_path, data: bytes) -> None:
    """Either refused, or sound and accepted by the safetensors package too."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    try:
        header = read_header(path)
    except InputError as error:
        assert str(path) in error.where and error.hint
        str(error).encode()
        return
    end = 0
    for info in header.tensors.values():
        assert info.start == end and info.end >= info.start
        end = info.end
    assert header.data_start + end == len(data)
    assert {name for name, _ in safetensors.deserialize(data)} == set(header.tensors)


@RELAXED
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes(tmp_path, data):
    check(tmp_path, data)


@RELAXED
@given(header=st.dictionaries(st.text(max_size=4), entries | json_values, max_size=4))
def test_arbitrary_json(tmp_path, header):
    raw = json.dumps(header).encode()
    check(tmp_path, len(raw).to_bytes(8, "little") + raw + bytes(32))


@RELAXED
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4
    ),
    cut=st.integers(0, 60),
)
def test_corrupted_file(tmp_path, edits, cut):
    data = bytearray(GOOD)
    for place, value in edits:
        data[place] = value
    check(tmp_path, bytes(data[: len(data) - cut]))


@settings(max_examples=100, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(
            st.sampled_from(["U8", "BF16", "F32", "I64"]),
            st.lists(st.integers(0, 5), max_size=3).map(tuple),
        ),
        max_size=6,
    )
)
def test_encoded_headers_read_back(tmp_path_factory, shapes):
    shapes.sort(key=lambda item: {"I64": 0, "F32": 1, "BF16": 2, "U8": 3}[item[0]])
    specs = [TensorSpec(f"t{i}", dtype, shape) for i, (dtype, shape) in enumerate(shapes)]
    path = tmp_path_factory.mktemp("h") / "x.safetensors"
    path.write_bytes(encode_header(specs, {}) + bytes(sum(spec.nbytes for spec in specs)))
    read = read_header(path).tensors
    assert {name: info.spec for name, info in read.items()} == {s.name: s for s in specs}


def test_no_allocation_beyond_the_file(tmp_path):
    """Hostile lengths and shapes must not be believed."""
    hostile = {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 2**62]}
    raw = json.dumps({"w": hostile}).encode()
    files = [
        (99_999_999).to_bytes(8, "little") + b"{}",
        len(raw).to_bytes(8, "little") + raw,
    ]
    for data in files:
        path = tmp_path / "x.safetensors"
        path.write_bytes(data)
        tracemalloc.start()
        with pytest.raises(InputError):
            read_header(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 300_000

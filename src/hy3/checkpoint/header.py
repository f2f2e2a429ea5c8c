"""The safetensors header: eight bytes of length, JSON, then the data section.

Reading checks everything that the format promises before any byte of data is touched, so that
later code may trust offsets. Nothing larger than the file's own header is ever allocated.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from hy3.checkpoint.json_file import open_regular, unreadable
from hy3.checkpoint.strict_json import JsonFault, key_offset, parse_object, shown
from hy3.errors import InputError

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}
_ORDINARY_RANK = 4  # a product of more sizes may be a very long number
_MAX_ELEMENTS = 2**63 - 1
_PLACE = attrgetter("start", "end")

DTYPE_BYTES: dict[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that is to be written or is expected; it has no place in a file yet."""

    name: str
    dtype: str  # a key of DTYPE_BYTES
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return _element_count(self.shape) * DTYPE_BYTES[self.dtype]


class TensorInfo(NamedTuple):
    """A tensor in a file; ``start`` and ``end`` are byte offsets into the data section.

    A tuple, which is made in half the time of a frozen dataclass: Hy3 has 139,298 of them.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return self.end - self.start

    @property
    def spec(self) -> TensorSpec:
        """The same tensor without its place."""
        return TensorSpec(self.name, self.dtype, self.shape)


@dataclass(frozen=True)
class Header:
    """One checked header; ``tensors`` are in data order and cover the data section exactly."""

    path: Path
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    data_start: int  # byte offset of the data section in the file
    file_bytes: int


def read_header(path: Path) -> Header:
    """Read and check the header of one safetensors file.

    Raises:
        InputError: naming the file, and where they apply the tensor and the byte offset.
    """
    try:
        with open_regular(path) as file:
            file_bytes = os.fstat(file.fileno()).st_size
            raw = file.read(header_length(file.read(LENGTH_BYTES), file_bytes, str(path)))
    except OSError as error:
        raise unreadable(path, error) from error
    return parse_header(raw, file_bytes, path, str(path))


def header_length(prefix: bytes, file_bytes: int, where: str) -> int:
    """Bytes of JSON that a file's first eight bytes announce; InputError when it cannot be so."""
    length = int.from_bytes(prefix, "little")
    message = ""
    if len(prefix) < LENGTH_BYTES:
        message = f"holds {file_bytes} bytes, too few for a safetensors header"
    elif length > MAX_HEADER_BYTES:
        message = f"announces a header of {length} bytes; the format allows {MAX_HEADER_BYTES}"
    elif LENGTH_BYTES + length > file_bytes:
        message = f"announces a header of {length} bytes but the file ends at {file_bytes}"
    if message:
        hint = "the file is truncated or not safetensors: fetch it again"
        raise InputError(message, hint=hint, where=f"{where}: byte 0")
    return length


def parse_header(raw: bytes, file_bytes: int, path: Path, where: str) -> Header:
    """Check the JSON of a header; nothing of the data section is needed.

    Args:
        file_bytes: size of the whole file
        path: where the file lies or will lie
        where: what errors call it
    """
    data_start = LENGTH_BYTES + len(raw)
    fault = _Fault(where, raw)
    try:
        entries = parse_object(raw)
    except JsonFault as error:
        raise fault(f"the header {error.reason}", error.key, error.offset) from error
    metadata = _metadata(entries.pop("__metadata__", {}), fault)
    infos = [_tensor(name, entry, fault) for name, entry in entries.items()]
    infos.sort(key=_PLACE)
    _check_cover(infos, file_bytes - data_start, data_start, fault)
    return Header(path, {info.name: info for info in infos}, metadata, data_start, file_bytes)


def read_head(header: Header) -> bytes:
    """The bytes of its file before the data section."""
    with header.path.open("rb") as file:
        return file.read(header.data_start)


def encode_header(tensors: Sequence[TensorSpec], metadata: dict[str, str]) -> bytes:
    """The length and JSON of a file that stores ``tensors`` in the given order without holes.

    The JSON is padded with spaces so that the data section starts at a multiple of 8. Every tensor
    must start at a multiple of its element size: torch cannot view it in place otherwise.
    """
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for spec in tensors:
        if offset % DTYPE_BYTES[spec.dtype]:
            raise InputError(
                f"would start at byte {offset}, not a multiple of its {spec.dtype} element",
                hint="write the tensors with wider elements first",
                where=f"tensor {spec.name!r}",
            )
        end = offset + spec.nbytes
        shape = list(spec.shape)
        entries[spec.name] = {"dtype": spec.dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    expected = len(tensors) + bool(metadata)
    assert len(entries) == expected, "two planned tensors share a name"
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


class _Fault:
    """Builds the errors of one header: file, tensor and byte offset in ``where``."""

    def __init__(self, file: str, raw: bytes) -> None:
        self.file, self.raw = file, raw

    def __call__(
        self, message: str, name: str = "", offset: int | None = None, hint: str = ""
    ) -> InputError:
        """``offset`` counts from the start of the JSON; without it the tensor's entry is found."""
        if offset is None:
            offset = key_offset(self.raw, name) if name else 0
        tensor = f": tensor {name!r}" if name else ""
        return InputError(
            message,
            hint=hint or "the file is damaged or not safetensors: fetch it again",
            where=f"{self.file}{tensor}: byte {LENGTH_BYTES + offset}",
        )


def _metadata(value: Any, fault: _Fault) -> dict[str, str]:
    if not isinstance(value, dict):
        raise fault("__metadata__ is not an object", "__metadata__")
    for key, item in value.items():
        if not isinstance(item, str):
            raise fault(f"the metadata value of {shown(key)} is not a string", "__metadata__")
    return value


def _tensor(name: str, entry: Any, fault: _Fault) -> TensorInfo:
    if not name.isprintable():
        raise fault("the tensor name holds control characters", name)
    if not isinstance(entry, dict) or entry.keys() != _ENTRY_KEYS:
        raise fault("the entry needs exactly dtype, shape and data_offsets", name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise fault(f"unknown dtype {shown(dtype)}", name)
    if not isinstance(shape, list) or not _are_sizes(*shape):
        raise fault("the shape is not a list of sizes", name)
    if not isinstance(offsets, list) or len(offsets) != 2 or not _are_sizes(*offsets):
        raise fault("data_offsets is not a pair of byte offsets", name)
    start, end = offsets
    if start > end:
        raise fault(f"data_offsets [{start}, {end}] end before they start", name)
    needed = _element_count(shape) * DTYPE_BYTES[dtype]
    if needed > _MAX_ELEMENTS:
        raise fault(f"the shape {shown(shape)} overflows", name)
    if needed != (given := end - start):
        raise fault(f"{dtype} {shown(shape)} needs {needed} bytes, data_offsets give {given}", name)
    return TensorInfo(name, dtype, tuple(shape), start, end)


def _check_cover(
    infos: Sequence[TensorInfo], data_bytes: int, data_start: int, fault: _Fault
) -> None:
    """The tensors, sorted by offset, must cover the data section: no overlap, no hole."""
    expected = 0
    for info in infos:
        at = data_start - LENGTH_BYTES + info.start
        if info.end > data_bytes:
            message = f"data ends at {info.end}, outside the data section of {data_bytes} bytes"
            hint = "the file is truncated: fetch it again"
            raise fault(message, info.name, at, hint)
        if info.start < expected:
            raise fault(f"overlaps the tensor before it, which ends at {expected}", info.name, at)
        if info.start > expected:
            raise fault(f"leaves a hole of {info.start - expected} bytes before it", info.name, at)
        expected = info.end
    if expected != data_bytes:
        message = f"{data_bytes - expected} bytes after the last tensor belong to no tensor"
        name = infos[-1].name if infos else ""
        raise fault(message, name, data_start - LENGTH_BYTES + expected)


def _are_sizes(*values: Any) -> bool:
    """Whether all are integers, no booleans, from 0 on; asked twice for every tensor."""
    for value in values:
        if type(value) is not int or value < 0 or value > _MAX_ELEMENTS:
            break
    else:
        return True
    return False


def _element_count(shape: Sequence[int]) -> int:
    """Product of ``shape``; of more than four sizes it saturates above 2**63, to cost no time."""
    if len(shape) <= _ORDINARY_RANK:
        return math.prod(shape)
    if 0 in shape:
        return 0
    count = 1
    for size in shape:
        count *= size
        if count > _MAX_ELEMENTS:
            return _MAX_ELEMENTS + 1
    return count

"""``FileHash``: what tells one file from any other, its SHA-256 and its size."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from hy3.checkpoint.json_file import open_regular, unreadable

_CHUNK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class FileHash:
    """One file as it must be."""

    sha256: str  # 64 lower-case hexadecimal digits
    size_bytes: int


def hash_bytes(data: bytes) -> FileHash:
    """Digest and size of a small file's content."""
    return FileHash(hashlib.sha256(data).hexdigest(), len(data))


def hash_file(path: Path) -> FileHash:
    """Digest and size of a whole file, read in chunks."""
    digest = hashlib.sha256()
    size = 0
    try:
        with open_regular(path) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise unreadable(path, error) from error
    return FileHash(digest.hexdigest(), size)

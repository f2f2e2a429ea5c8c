"""safetensors headers over the network: the first bytes of a shard, and never its data."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from huggingface_hub import constants
from huggingface_hub.utils import get_session, hf_raise_for_status

from hy3.checkpoint.header import LENGTH_BYTES, Header, header_length, parse_header, read_header
from hy3.errors import InputError
from hy3.hub.faults import hub_errors, retried
from hy3.hub.repository import Repository

FIRST_REQUEST_BYTES = 128 * 1024  # longer than almost every header, far shorter than a shard
PARALLEL_REQUESTS = 8
_CHUNK_BYTES = 16 * 1024


def read_remote_headers(repository: Repository, folder: Path) -> dict[str, Header]:
    """The checked headers of all shards, by name; those in the cache are read from there.

    Args:
        folder: where the shards lie or will lie; the headers' paths are in it

    Raises:
        InputError: a header is unsound, or a shard is not what the hub announced.
        EnvironmentFault: the hub cannot be reached.
    """

    def read(name: str) -> Header:
        return read_remote_header(repository, name, folder)

    names = repository.shards
    with ThreadPoolExecutor(PARALLEL_REQUESTS) as pool:
        futures = [pool.submit(read, name) for name in names]
        try:
            headers = [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return dict(zip(names, headers, strict=True))


def read_remote_header(repository: Repository, shard: str, folder: Path) -> Header:
    """One header, in one request or, if it is very long, in two; again once if it is unsound."""
    if repository.cached(shard):
        return read_header(folder / shard)
    try:
        return _read_once(repository, shard, folder)
    except InputError:  # it may have been damaged on its way
        return _read_once(repository, shard, folder)


def _read_once(repository: Repository, shard: str, folder: Path) -> Header:
    size, where = repository.files[shard].size_bytes, repository.where(shard)
    with hub_errors(where):
        head = _fetch(repository, shard, 0, min(FIRST_REQUEST_BYTES, size))
        end = LENGTH_BYTES + header_length(head[:LENGTH_BYTES], size, where)
        if end > len(head):
            head += _fetch(repository, shard, len(head), end)
    return parse_header(head[LENGTH_BYTES:end], size, folder / shard, where)


def _fetch(repository: Repository, shard: str, start: int, end: int) -> bytes:
    """Bytes ``start`` to ``end`` of the shard, asked for again when the connection breaks."""
    if start == end:
        return b""
    return retried(lambda: _fetch_once(repository, shard, start, end))


def _fetch_once(repository: Repository, shard: str, start: int, end: int) -> bytes:
    headers = repository.headers() | {"Range": f"bytes={start}-{end - 1}"}
    request = get_session().stream(
        "GET", repository.url(shard), headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
    )
    with request as response:
        hf_raise_for_status(response)
        total = response.headers.get("Content-Range", "").rpartition("/")[2]
        if response.status_code != 206 or total != str(repository.files[shard].size_bytes):
            raise InputError(
                "the server does not send the part asked for of the file announced",
                hint="check HF_ENDPOINT and any proxy; they must pass on range requests",
                where=repository.where(shard),
            )
        data = b""
        for chunk in response.iter_raw(_CHUNK_BYTES):
            data += chunk
            if len(data) >= end - start:
                break
    return data[: end - start]

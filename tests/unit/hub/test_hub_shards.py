"""Downloads: resumed, checked, bounded ahead, and gone again when they are only to pass."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from hy3.checkpoint.file_hash import hash_file
from hy3.checkpoint.header import TensorSpec, encode_header, read_header
from hy3.errors import EnvironmentFault, InputError
from hy3.hub import download
from hy3.hub.content import Cancelled
from hy3.hub.name import HubName
from hy3.hub.repository import Repository, open_repository
from hy3.hub.shards import AHEAD, HubShards
from support.hub_server import REPOSITORY, Fault, Hub, serve_hub

SHARDS = [f"model-{number}.safetensors" for number in range(8)]
SIZE = 300_000
HEAD_BYTES = 80
KEPT_CHUNK = 64 * 1024  # what the library writes at once, here


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", KEPT_CHUNK)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """Eight shards of one tensor each; what it is named is not asked here."""
    source = tmp_path / "source"
    source.mkdir()
    head = encode_header([TensorSpec("weight", "U8", (SIZE - HEAD_BYTES,))], {})
    assert len(head) == HEAD_BYTES
    for name in SHARDS:
        (source / name).write_bytes(head + os.urandom(SIZE - HEAD_BYTES))
    with serve_hub(source) as hub:
        yield hub


def repository_of(hub: Hub, tmp_path: Path) -> Repository:
    return open_repository(HubName(REPOSITORY), hub.api(), tmp_path / "cache")


def shards_of(hub: Hub, repository: Repository, passing: Path | None) -> HubShards:
    """Planned with the headers as they are now."""
    headers = {name: read_header(hub.folder / name) for name in SHARDS}
    return HubShards(repository, headers, passing)


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "waited for 20 s"
        time.sleep(0.01)


def test_passing_shards_arrive_whole_and_go(hub: Hub, tmp_path: Path) -> None:
    passing = tmp_path / "passing"
    with shards_of(hub, repository_of(hub, tmp_path), passing) as source:
        source.expect(SHARDS, threading.Event())
        for name in SHARDS:
            path = source.acquire(name)
            assert path.read_bytes() == (hub.folder / name).read_bytes()
            assert source.acquire(name) == path
            assert source.file_hash(name) == hash_file(hub.folder / name)
            present = set(os.listdir(passing))
            assert len(present) <= 1 + AHEAD
            source.release(name)
            assert not path.exists()
    assert not passing.exists()
    assert hub.sent == dict.fromkeys(SHARDS, SIZE)


def test_no_more_than_some_are_fetched_ahead(hub: Hub, tmp_path: Path) -> None:
    with shards_of(hub, repository_of(hub, tmp_path), tmp_path / "passing") as source:
        source.expect(SHARDS, threading.Event())
        eventually(lambda: len(hub.sent) == AHEAD)
        source.acquire(SHARDS[7])  # out of turn: at once, whatever waits
        source.acquire(SHARDS[0])
        eventually(lambda: len(hub.sent) == AHEAD + 2)
        time.sleep(0.1)
        assert set(hub.sent) == {SHARDS[0], SHARDS[1], SHARDS[2], SHARDS[7]}


def test_kept_shards_are_found_by_the_library_and_not_fetched_again(
    hub: Hub, tmp_path: Path
) -> None:
    repository = repository_of(hub, tmp_path)
    with shards_of(hub, repository, None) as source:
        source.expect(SHARDS[:2], threading.Event())
        kept = [source.acquire(name) for name in SHARDS[:2]]
        for name in SHARDS[:2]:
            source.release(name)
    assert [path.read_bytes() for path in kept] == [
        (hub.folder / name).read_bytes() for name in SHARDS[:2]
    ]
    assert [repository.cached(name) for name in SHARDS[:2]] == kept
    before = dict(hub.sent)
    with shards_of(hub, repository, tmp_path / "passing") as source:
        # From the cache, and left there.
        assert source.acquire(SHARDS[0]) == kept[0]
        source.release(SHARDS[0])
    assert hub.sent == before and kept[0].exists()
    library = repository.api.hf_hub_download(
        REPOSITORY, SHARDS[1], revision="main", cache_dir=repository.cache
    )
    assert Path(library).samefile(kept[1]) and hub.sent == before


@pytest.mark.parametrize("keep", [True, False])
def test_a_reset_goes_on_where_it_stopped(hub: Hub, tmp_path: Path, keep: bool) -> None:
    hub.faults[SHARDS[0]] = [Fault(2, reset_after=100_000)]
    with shards_of(hub, repository_of(hub, tmp_path), None if keep else tmp_path / "p") as source:
        path = source.acquire(SHARDS[0])
        assert path.read_bytes() == (hub.folder / SHARDS[0]).read_bytes()
    starts = [each.range[0] if each.range else 0 for each in hub.content_requests()]
    assert starts == [0, KEPT_CHUNK, 2 * KEPT_CHUNK]


def test_a_killed_run_goes_on_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    repository, passing = repository_of(hub, tmp_path), tmp_path / "passing"
    hub.faults[SHARDS[0]] = [Fault(1, seconds_per_chunk=0.2)]
    child = os.fork()
    if child == 0:
        try:
            shards_of(hub, repository, passing).acquire(SHARDS[0])
        finally:
            os._exit(1)
    partial = passing / SHARDS[0]
    eventually(lambda: partial.exists() and partial.stat().st_size >= 2 * KEPT_CHUNK)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    left = partial.stat().st_size
    assert left < SIZE
    with shards_of(hub, repository, passing) as source:
        assert source.acquire(SHARDS[0]).read_bytes() == (hub.folder / SHARDS[0]).read_bytes()
    assert hub.content_requests()[-1].range == (left, SIZE)


def test_slow_shards_and_server_errors(hub: Hub, tmp_path: Path) -> None:
    hub.faults[SHARDS[0]] = [Fault(2, status=503), Fault(1, seconds_per_chunk=0.05)]
    hub.faults[SHARDS[1]] = [Fault(1, status=500), Fault(1, ignore_range=True)]
    with shards_of(hub, repository_of(hub, tmp_path), tmp_path / "passing") as source:
        source.expect(SHARDS[:2], threading.Event())
        for name in SHARDS[:2]:
            assert source.acquire(name).read_bytes() == (hub.folder / name).read_bytes()


def test_a_server_that_resumes_from_the_start(hub: Hub, tmp_path: Path) -> None:
    hub.faults[SHARDS[0]] = [Fault(1, reset_after=200_000), Fault(1, ignore_range=True)]
    with shards_of(hub, repository_of(hub, tmp_path), tmp_path / "passing") as source:
        path = source.acquire(SHARDS[0])
        assert path.read_bytes() == (hub.folder / SHARDS[0]).read_bytes()


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("git_files", [True, False])
@pytest.mark.parametrize("fault", [{"flip_at": 123_456}, {"extra_bytes": 10}])
def test_wrong_bytes_once_and_always(
    hub: Hub, tmp_path: Path, keep: bool, git_files: bool, fault: dict[str, int]
) -> None:
    hub.git_files = git_files
    repository, passing = repository_of(hub, tmp_path), None if keep else tmp_path / "passing"
    hub.faults[SHARDS[0]] = [Fault(1, **fault)]
    hub.faults[SHARDS[1]] = [Fault(100, **fault)]
    with shards_of(hub, repository, passing) as source:
        path = source.acquire(SHARDS[0])
        assert path.read_bytes() == (hub.folder / SHARDS[0]).read_bytes()
        assert source.file_hash(SHARDS[0]) == hash_file(path)
        with pytest.raises(InputError, match="arrived twice") as caught:
            source.acquire(SHARDS[1])
    assert SHARDS[1] in caught.value.where and caught.value.hint
    assert sum(each.file == SHARDS[1] for each in hub.content_requests()) == 2


@pytest.mark.parametrize("passing", [True, False])
def test_a_damaged_file_in_the_cache_is_replaced(hub: Hub, tmp_path: Path, passing: bool) -> None:
    repository = repository_of(hub, tmp_path)
    with shards_of(hub, repository, None) as source:
        path = source.acquire(SHARDS[0])
    with path.open("r+b") as file:
        file.write(b"damage")
    with shards_of(hub, repository, tmp_path / "p" if passing else None) as source:
        path = source.acquire(SHARDS[0])
        assert path.read_bytes() == (hub.folder / SHARDS[0]).read_bytes()


def test_a_shard_that_changes_under_way_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.faults[SHARDS[0]] = [Fault(1, reset_after=100_000)]
    repository = repository_of(hub, tmp_path)
    changed = bytearray((hub.folder / SHARDS[0]).read_bytes())
    changed[-1] ^= 1
    (hub.folder / SHARDS[0]).write_bytes(changed)
    with (
        shards_of(hub, repository, None) as source,
        pytest.raises(InputError, match="arrived twice"),
    ):
        source.acquire(SHARDS[0])


def test_a_push_in_between_changes_nothing(hub: Hub, tmp_path: Path) -> None:
    """Every request names the commit; a hub that no longer has it says so."""
    repository = repository_of(hub, tmp_path)
    hub.commit = "2" * 40
    with (
        shards_of(hub, repository, None) as source,
        pytest.raises(InputError, match="no such revision") as caught,
    ):
        source.acquire(SHARDS[0])
    assert repository.commit[:12] in caught.value.where
    assert hub.sent == {}


def test_a_shard_with_another_header_than_planned_is_refused(hub: Hub, tmp_path: Path) -> None:
    """A header is fetched before its shard, and nothing else can tell that it was altered."""
    headers = {name: read_header(hub.folder / name) for name in SHARDS}
    info = headers[SHARDS[0]].tensors["weight"]
    altered = {"weight": info._replace(dtype="I8")}
    headers[SHARDS[0]] = replace(headers[SHARDS[0]], tensors=altered)
    with HubShards(repository_of(hub, tmp_path), headers, None) as source:
        source.acquire(SHARDS[1])
        with pytest.raises(InputError, match="another header") as caught:
            source.acquire(SHARDS[0])
    assert SHARDS[0] in caught.value.where


def test_a_disk_without_room(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept, all shards need room; to pass, three of them do."""
    usage = shutil.disk_usage(tmp_path)._replace(free=4 * SIZE)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    repository = repository_of(hub, tmp_path)
    with (
        shards_of(hub, repository, None) as source,
        pytest.raises(EnvironmentFault, match=r"for shards and has 1\.20 MB free") as caught,
    ):
        source.expect(SHARDS, threading.Event())
    assert "--discard-source" in caught.value.hint and hub.sent == {}
    with shards_of(hub, repository, tmp_path / "passing") as source:
        source.expect(SHARDS, threading.Event())


def test_a_file_too_large_for_http_is_named(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", SIZE - 1)
    with (
        shards_of(hub, repository_of(hub, tmp_path), None) as source,
        pytest.raises(InputError, match="no file of that size") as caught,
    ):
        source.acquire(SHARDS[0])
    assert f"hf download {REPOSITORY}" in caught.value.hint and hub.sent == {}


def test_a_hub_that_went_away(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    with serve_hub(hub.folder) as other:
        repository = repository_of(other, tmp_path)
    with (
        shards_of(hub, repository, None) as source,
        pytest.raises(EnvironmentFault, match="cannot be reached"),
    ):
        source.acquire(SHARDS[0])


@pytest.mark.parametrize("keep", [True, False])
def test_a_disk_that_takes_no_more(hub: Hub, tmp_path: Path, keep: bool) -> None:
    passing = None if keep else tmp_path / "passing"
    repository = repository_of(hub, tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (KEPT_CHUNK, hard))
    try:
        with (
            pytest.raises(EnvironmentFault, match="takes no more") as caught,
            shards_of(hub, repository, passing) as source,
        ):
            source.acquire(SHARDS[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "is kept" in caught.value.hint
    with shards_of(hub, repository, passing) as source:
        assert source.acquire(SHARDS[0]).stat().st_size == SIZE
    assert hub.content_requests()[-1].range == (KEPT_CHUNK, SIZE)


def test_cancelling_frees_who_waits(hub: Hub, tmp_path: Path) -> None:
    hub.gate = threading.Event()
    raised: list[BaseException] = []

    def wait_for(name: str) -> None:
        try:
            source.acquire(name)
        except BaseException as error:
            raised.append(error)

    with shards_of(hub, repository_of(hub, tmp_path), tmp_path / "passing") as source:
        stop = threading.Event()
        source.expect(SHARDS[:6], stop)
        threads = [threading.Thread(target=wait_for, args=(name,)) for name in SHARDS[:6]]
        for thread in threads:
            thread.start()
        eventually(lambda: len(hub.requests) >= 4)
        stop.set()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        hub.gate.set()
        with pytest.raises(Cancelled):
            source.acquire(SHARDS[7])
    assert [type(each) for each in raised] == [Cancelled] * 6

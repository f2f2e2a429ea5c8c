"""A source may fetch shards when they are wanted and drop them when they are done with."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from hy3.checkpoint.file_hash import FileHash
from hy3.errors import InputError
from hy3.quantize.pipeline import quantize
from hy3.quantize.shard_source import HeldShards, LocalShards
from support.quantizing import no_progress, plan_of, run, tree
from support.scripted import make_random


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random(tmp_path_factory.mktemp("source") / "model", seed=3, shards=4)


class FetchedShards(LocalShards):
    """Copies a shard from ``origin`` when it is acquired and deletes it when it is released."""

    def __init__(self, origin: Path, folder: Path, out: Path) -> None:
        super().__init__(folder, {})
        self.origin, self.out = origin, out
        self.lock = threading.Lock()
        self.expected: list[str] = []
        self.released: list[str] = []
        self.fail_at = ""

    def expect(self, shards: Sequence[str], stop: threading.Event) -> None:
        self.expected = list(shards)

    def acquire(self, shard: str) -> Path:
        with self.lock:
            assert shard not in self.released, "wanted after its release"
            if not (self.folder / shard).exists():
                shutil.copy2(self.origin / shard, self.folder / shard)
        return self.folder / shard

    def release(self, shard: str) -> None:
        with self.lock:
            assert (self.out / shard).exists(), "released before its output was durable"
            assert shard in (self.out / "hy3_resume.json").read_text()
            self.released.append(shard)
            (self.folder / shard).unlink()

    def check_unchanged(self, name: str) -> None:
        if name == self.fail_at:
            raise InputError("changed", hint="try again", where=name)

    def file_hash(self, shard: str) -> FileHash:
        raise AssertionError("not needed for an unfinished folder")


def empty_of_shards(folder: Path, copy: Path) -> Path:
    """The source's small files alone."""
    copy.mkdir()
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy2(path, copy / path.name)
    return copy


@pytest.mark.parametrize("workers", [1, 3])
def test_every_shard_is_fetched_and_released_once(
    folder: Path, tmp_path: Path, workers: int
) -> None:
    run(folder, tmp_path / "expected")
    out = tmp_path / "out"
    source = FetchedShards(folder, empty_of_shards(folder, tmp_path / "cache"), out)
    plan = plan_of(folder)
    quantize(plan, out, workers, no_progress, source)
    assert tree(out) == tree(tmp_path / "expected")
    assert source.expected == list(plan.shards)
    assert sorted(source.released) == sorted(plan.shards)
    assert not list(source.folder.glob("*.safetensors"))


def test_a_rerun_wants_no_shard_that_was_released(folder: Path, tmp_path: Path) -> None:
    """The pairs of this checkpoint lie in different shards: the state keeps what they need."""
    run(folder, tmp_path / "expected")
    out, cache = tmp_path / "out", empty_of_shards(folder, tmp_path / "cache")
    plan = plan_of(folder)
    first = FetchedShards(folder, cache, out)
    first.fail_at = list(plan.shards)[-1]
    with pytest.raises(InputError, match="changed"):
        quantize(plan, out, 1, no_progress, first)
    assert first.released == list(plan.shards)[:-1]
    second = FetchedShards(folder, cache, out)
    second.released = first.released
    quantize(plan_of(folder), out, 1, no_progress, second)
    assert tree(out) == tree(tmp_path / "expected")


def test_a_held_shard_is_released_by_its_last_holder() -> None:
    released: list[str] = []

    class Source(LocalShards):
        def release(self, shard: str) -> None:
            released.append(shard)

    class Reader:
        def forget(self, shard: str) -> None:
            assert not released

    held = HeldShards(Source(Path(), {}), Reader())  # type: ignore[arg-type]
    with held.hold("a"):
        with held.hold("a"):
            held.done("a")
        assert not released
    assert released == ["a"]
    with held.hold("a"):
        pass
    assert released == ["a"]


def test_a_local_shard_that_changed_is_named(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    source = LocalShards(copy, plan_of(copy).stamps)
    name = min(path.name for path in copy.glob("*.safetensors"))
    source.check_unchanged(name)
    with (copy / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(InputError, match="changed while") as caught:
        source.check_unchanged(name)
    assert name in caught.value.where

"""Work goes on within a shard, and only on bytes that are still what they were."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hy3.quantize.journal import FinishedTensor, Journal
from hy3.quantize.resume import RESUME_NAME
from hy3.quantize.stats import WeightStats
from support.killing import EncodeCount, Place, kill_at, weights_of
from support.quantizing import run, run_in_child, tree
from support.scripted import make_random

LINES = [
    FinishedTensor("a" * 64, "b" * 64, None, None),
    FinishedTensor("c" * 64, "d" * 64, 0.1 + 0.2, WeightStats(0.1, 1e-300, 3.0, (0, 5, 1))),
    FinishedTensor("e" * 64, "f" * 64, 2.0**-126, WeightStats(0.5, 0.25, 1 / 3)),
]


pytestmark = pytest.mark.usefixtures("pictures_once")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One shard, so that everything is within it."""
    folder = tmp_path_factory.mktemp("source") / "model"
    return make_random(folder, seed=9, shards=1, num_experts=2)


@pytest.fixture(scope="module")
def half_done(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run leaves that was killed in the middle of its shard."""
    out = tmp_path_factory.mktemp("half") / "out"
    assert run_in_child(source, out, kill_at(out, Place("tensor", 120, "half")), workers=1) != 0
    return out


@pytest.fixture
def out(half_done: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half_done, tmp_path / "out"))


def encoded_by_rerun(source: Path, out: Path, workers: int = 1) -> int:
    with EncodeCount() as count:
        run(source, out, workers=workers)
    return count.value


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    with Journal(path) as journal:
        for line in LINES:
            journal.append(line)
    with Journal(path) as journal:
        assert list(journal.found) == LINES
        journal.confirm()
        journal.append(LINES[2])
        assert not journal.found
    with Journal(path) as journal:
        assert list(journal.found) == [LINES[0], LINES[2]]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damage_ends_the_sound_lines(data: st.DataObject) -> None:
    """Cut anywhere, a byte changed anywhere, or a page of zeros: what is found is a beginning."""
    whole = bytearray(b"".join(line.encode() for line in LINES))
    place = data.draw(st.integers(0, len(whole) - 1))
    kind = data.draw(st.sampled_from(["cut", "change", "zeros"]))
    if kind == "cut":
        del whole[place:]
    elif kind == "change":
        whole[place] ^= data.draw(st.integers(1, 255))
    else:
        whole[place:] = bytes(len(whole) - place)
    undamaged = next(
        number for number in range(4) if place < sum(len(line.encode()) for line in LINES[:number])
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.journal"
        path.write_bytes(whole)
        with Journal(path) as journal:
            assert list(journal.found) == LINES[: undamaged - 1]


@pytest.mark.parametrize("workers", [1, 4])
def test_a_killed_shard_goes_on_where_it_was(
    source: Path, expected: dict[str, str], out: Path, workers: int
) -> None:
    assert 0 < encoded_by_rerun(source, out, workers) < weights_of(source)
    assert tree(out) == expected


def test_all_that_follows_a_changed_byte_is_made_again(
    source: Path, expected: dict[str, str], out: Path, half_done: Path, tmp_path: Path
) -> None:
    least = encoded_by_rerun(source, Path(shutil.copytree(half_done, tmp_path / "whole")))
    partial = out / "model-00001-of-00001.safetensors.tmp"
    data = bytearray(partial.read_bytes())
    data[len(data) * 9 // 10] ^= 1
    partial.write_bytes(data)
    assert encoded_by_rerun(source, out) > least
    assert tree(out) == expected


@pytest.mark.parametrize("lost", ["data", "journal", "header"])
def test_a_half_without_the_other_is_worth_nothing(
    source: Path, expected: dict[str, str], out: Path, lost: str
) -> None:
    partial = out / "model-00001-of-00001.safetensors.tmp"
    if lost == "data":
        os.truncate(partial, 0)
    elif lost == "journal":
        (out / "model-00001-of-00001.safetensors.journal").unlink()
    else:
        data = bytearray(partial.read_bytes())
        data[20] ^= 1
        partial.write_bytes(data)
    assert encoded_by_rerun(source, out) == weights_of(source)
    assert tree(out) == expected


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_shard_that_was_renamed_but_not_recorded_is_kept(
    source: Path, expected: dict[str, str], tmp_path: Path, moment: str
) -> None:
    out = tmp_path / "out"
    assert run_in_child(source, out, kill_at(out, Place("rename", 1, moment)), workers=1) != 0
    assert encoded_by_rerun(source, out) == 0
    assert tree(out) == expected


def test_another_source_of_the_same_looks_is_not_mixed_in(
    source: Path, half_done: Path, tmp_path: Path
) -> None:
    """Same sizes and times, other bytes: the digests of the source tell."""
    copy = Path(shutil.copytree(source, tmp_path / "source"))
    out = Path(shutil.copytree(half_done, tmp_path / "out"))
    shard = copy / "model-00001-of-00001.safetensors"
    before = shard.stat()
    data = bytearray(shard.read_bytes())
    data[len(data) // 5] ^= 1
    shard.write_bytes(data)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    run(copy, out)
    run(copy, tmp_path / "fresh")
    assert tree(out) == tree(tmp_path / "fresh")


def test_the_state_of_an_older_version_is_refused(source: Path, out: Path) -> None:
    state = out / RESUME_NAME
    state.write_bytes(state.read_bytes().replace(b"hy3.resume/3", b"hy3.resume/2"))
    with pytest.raises(Exception, match="not the state of an interrupted run") as caught:
        run(source, out)
    assert "empty folder" in caught.value.hint

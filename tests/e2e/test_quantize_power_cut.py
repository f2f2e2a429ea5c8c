"""After a power cut at any point no file looks complete and is not, and a rerun ends as ever."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hy3.errors import InputError
from support.killing import Place, kill_at
from support.os_calls import Call
from support.power_cut import CHANCES, check_cuts, record
from support.quantizing import drawn_once, run_in_child, tree
from support.scripted import make_random


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """The disk is a model here, so the real one need not be waited for."""
    with drawn_once(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "model"
    return make_random(folder, seed=6, shards=3, num_experts=2)


def test_a_cut_at_some_points(source: Path, expected: dict[str, str], tmp_path: Path) -> None:
    calls = record(source, tmp_path / "out")
    step = len(calls) * len(CHANCES) // 60
    assert check_cuts(source, expected, calls, tmp_path / "cut", step) >= 60


def test_a_cut_of_a_resumed_run(source: Path, expected: dict[str, str], tmp_path: Path) -> None:
    out, start = tmp_path / "out", tmp_path / "start"
    # Renamed but not recorded: the rerun renames it back first.
    assert run_in_child(source, out, kill_at(out, Place("rename", 1, "after")), workers=1) != 0
    shutil.copytree(out, start)
    calls = record(source, out)
    assert calls[0].kind == "open" and any(call.target.endswith(".tmp") for call in calls)
    step = len(calls) * len(CHANCES) // 20
    assert check_cuts(source, expected, calls, tmp_path / "cut", step, start) >= 20


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_cut_after_every_call(tmp_path: Path) -> None:
    source = make_random(tmp_path / "source", seed=7, shards=4, num_experts=8)
    calls = record(source, tmp_path / "out")
    checked = check_cuts(source, tree(tmp_path / "out"), calls, tmp_path / "cut", 1)
    assert checked >= 500 * len(CHANCES)


def flushes_a_shard(call: Call) -> bool:
    return call.kind == "fsync" and call.name.endswith(".safetensors.tmp")


def flushes_the_folder(call: Call) -> bool:
    return call.kind == "fsync_folder"


@pytest.mark.parametrize(
    ("missing", "fault"),
    [
        (flushes_a_shard, r"\.safetensors looks finished"),
        (flushes_the_folder, "is not empty: it holds"),  # shards without the state before them
    ],
)
def test_a_writer_that_does_not_flush_is_caught(
    source: Path,
    expected: dict[str, str],
    tmp_path: Path,
    missing: Callable[[Call], bool],
    fault: str,
) -> None:
    calls = record(source, tmp_path / "out", wanted=lambda call: not missing(call))
    with pytest.raises((AssertionError, InputError), match=fault):
        check_cuts(source, expected, calls, tmp_path / "cut", 5)

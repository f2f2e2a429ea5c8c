"""``inspect`` and ``quantize`` of a model on a hub, as processes that know it by HF_ENDPOINT."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hy3 as hy3_package
from support.hub_server import REPOSITORY, Hub, serve_hub
from support.quantizing import tree
from support.scripted import make_random

NAME = f"hf://{REPOSITORY}"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random(tmp_path_factory.mktemp("hub") / "model", seed=11)


@pytest.fixture
def hub(source: Path) -> Iterator[Hub]:
    with serve_hub(source) as hub:
        yield hub


def hy3(
    hub: Hub, tmp_path: Path, *arguments: str | Path, **more: str
) -> subprocess.CompletedProcess[str]:
    """Without any HF_ variable of the outer world, and in ``tmp_path``."""
    cleared = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    package = Path(hy3_package.__file__).parents[1]
    known = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(package)}
    return subprocess.run(
        [sys.executable, "-m", "hy3", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=cleared | known | more,
        cwd=tmp_path,
    )


def test_inspect_says_the_same_and_fetches_no_shard(hub: Hub, tmp_path: Path) -> None:
    local = json.loads(hy3(hub, tmp_path, "inspect", hub.folder, "--json").stdout)
    remote = hy3(hub, tmp_path, "inspect", REPOSITORY, "--json")
    assert remote.returncode == 0, remote.stderr
    found = json.loads(remote.stdout)
    same = found.keys() - {"model", "revision"}
    assert {key: found[key] for key in same} == {key: local[key] for key in same}
    assert (found["model"], found["revision"]) == (REPOSITORY, hub.commit)
    assert "3 shards" in remote.stderr and "free" in remote.stderr
    assert len(hub.content_requests()) == 3
    assert all(each.range and each.range[1] <= 128 * 1024 for each in hub.content_requests())


def test_plan_needs_no_shard_either(hub: Hub, tmp_path: Path) -> None:
    made = hy3(hub, tmp_path, "plan", NAME, "--hardware", "h200", "--json")
    assert made.returncode == 0, made.stderr
    assert len(hub.content_requests()) == 3
    assert all(each.range for each in hub.content_requests())


def test_a_folder_of_that_name_comes_first(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / REPOSITORY).parent.mkdir()
    (tmp_path / REPOSITORY).symlink_to(hub.folder)
    assert hy3(hub, tmp_path, "inspect", REPOSITORY, "--json").returncode == 0
    assert hub.requests == []


def test_quantize_without_keeping_the_source(hub: Hub, tmp_path: Path) -> None:
    arguments = ("quantize", f"{NAME}@main", "out", "--discard-source", "--json")
    made = hy3(hub, tmp_path, *arguments)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["source"] == REPOSITORY
    again = hy3(hub, tmp_path, *arguments)
    assert json.loads(again.stdout)["was_complete"] is True, again.stderr
    shards = {path.name: path.stat().st_size for path in hub.folder.glob("*.safetensors")}
    left = {path.name for path in (tmp_path / "home").rglob("*")}
    assert len(shards) == 3 and left and not left & shards.keys()
    assert all(hub.sent[name] <= size + 2 * 128 * 1024 for name, size in shards.items())
    verified = hy3(hub, tmp_path, "verify", "out", "--source", hub.folder)
    assert verified.returncode == 0, verified.stdout


def test_errors_have_their_exit_codes(hub: Hub, tmp_path: Path) -> None:
    hub.gated, hub.token = True, "hf_right"
    for arguments, more, code, word in (
        (("inspect", NAME), {}, 2, "not granted"),
        (("inspect", NAME), {"HF_TOKEN": "hf_right"}, 0, ""),
        (("verify", NAME), {}, 2, "wants a local folder"),
        (("quantize", hub.folder, "out", "--discard-source"), {}, 2, "from a hub"),
    ):
        made = hy3(hub, tmp_path, *arguments, **more)
        assert made.returncode == code, made.stderr
        assert word in made.stderr
        assert code == 0 or made.stderr.count("hint:") == 1


def test_offline_takes_what_the_cache_holds(hub: Hub, tmp_path: Path) -> None:
    assert hy3(hub, tmp_path, "inspect", NAME).returncode == 0
    half = hy3(hub, tmp_path, "inspect", NAME, HF_HUB_OFFLINE="1")
    assert half.returncode == 3 and "as a whole" in half.stderr  # headers are no shards
    online = hy3(hub, tmp_path, "quantize", NAME, "online")
    assert online.returncode == 0, online.stderr
    before = len(hub.requests)
    made = hy3(hub, tmp_path, "quantize", NAME, "offline", HF_HUB_OFFLINE="1")
    assert made.returncode == 0, made.stderr
    assert len(hub.requests) == before
    assert tree(tmp_path / "offline") == tree(tmp_path / "online")

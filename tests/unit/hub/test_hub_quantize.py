"""Quantizing from a hub: the bytes of a local run, from shards that come and go meanwhile."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hy3.checkpoint.index import INDEX_NAME
from hy3.checkpoint.manifest import Origin
from hy3.cli.model_folder import Model
from hy3.cli.quantize_source import PASSING_NAME, shards_of, source_of
from hy3.errors import InputError
from hy3.hub import download
from hy3.hub.checkpoint import read_remote_checkpoint
from hy3.hub.headers import FIRST_REQUEST_BYTES
from hy3.hub.name import HubName
from hy3.hub.repository import open_repository
from hy3.hub.shards import AHEAD
from hy3.quantize.export import COPIED
from hy3.quantize.pipeline import Outcome, quantize
from hy3.quantize.plan import plan_source
from hy3.quantize.recipe import load_recipe
from support.foreign_files import fp8_tensor, write_foreign
from support.hub_server import REPOSITORY, Fault, Hub, serve_hub
from support.quantized import write_index
from support.quantizing import no_progress, run, tree
from support.scripted import make_random

SHARDS = 12
ORDERED_SHARDS = 20


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FIRST_PAUSE_S", 0.01)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of like size; gate and up of an expert need not lie in the same one."""
    folder = tmp_path_factory.mktemp("hub") / "model"
    return make_random(folder, seed=11, shards=SHARDS, num_experts=32, expert_hidden_dim=128)


@pytest.fixture(scope="module")
def expected(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What quantizing the same folder here gives."""
    out = tmp_path_factory.mktemp("expected") / "out"
    run(folder, out)
    return tree(out)


@pytest.fixture
def hub(folder: Path) -> Iterator[Hub]:
    with serve_hub(folder) as hub:
        yield hub


def run_remote(
    hub: Hub, tmp_path: Path, discard: bool = True, workers: int = 1, decodes: bool = False
) -> Outcome:
    """As the command does it, with this hub and a cache in ``tmp_path``."""
    small_files, cache = (*COPIED, "README.md"), tmp_path / "cache"
    repository = open_repository(HubName(REPOSITORY), hub.api(), cache)
    remote = read_remote_checkpoint(repository, small_files)
    origin = Origin(REPOSITORY, remote.repository.commit)
    model = Model(REPOSITORY, remote.folder, origin, remote)
    recipe = load_recipe("experts-nvfp4")
    plan = plan_source(source_of(model), recipe, "exact", "same", decodes=decodes)
    out = tmp_path / "out"
    with shards_of(model, out, discard) as shards:
        return quantize(plan, out, workers, no_progress, shards)


def shard_names(hub: Hub) -> list[str]:
    return sorted(path.name for path in hub.folder.glob("*.safetensors"))


def shard_sizes(hub: Hub) -> list[int]:
    return sorted((hub.folder / name).stat().st_size for name in shard_names(hub))


def kept_sizes(tmp_path: Path) -> list[int]:
    """Shards in the cache, whole or not."""
    blobs = (tmp_path / "cache").rglob("blobs/*")
    return sorted(path.stat().st_size for path in blobs if path.stat().st_size > 200_000)


def data_requests(hub: Hub) -> set[str]:
    """Headers are asked for from byte 0 with an end; whole shards and the rest of one are not."""
    return {each.file for each in hub.content_requests() if not each.range or each.range[0]}


def assert_same(out: Path, expected: dict[str, str]) -> None:
    """The card and the manifest say where it came from; nothing else may differ."""
    found = tree(out)
    assert set(found) == set(expected)
    unlike = {name for name in found if found[name] != expected[name]}
    assert unlike == {"README.md", "hy3_manifest.json"}


@pytest.mark.parametrize(("discard", "workers"), [(True, 1), (True, 3), (False, 2)])
def test_the_bytes_of_a_local_run(
    hub: Hub, tmp_path: Path, expected: dict[str, str], discard: bool, workers: int
) -> None:
    names = shard_names(hub)
    hub.faults[names[0]] = [Fault(), Fault(reset_after=100_000)]  # the header arrives well
    hub.faults[names[3]] = [Fault(), Fault(flip_at=100_000)]
    hub.faults[names[5]] = [Fault(status=503), Fault(), Fault(status=503)]
    hub.faults[names[7]] = [Fault(), Fault(extra_bytes=7)]
    run_remote(hub, tmp_path, discard, workers)
    out = tmp_path / "out"
    assert_same(out, expected)
    assert f"`{REPOSITORY}` at revision `{hub.commit}`." in (out / "README.md").read_text()
    manifest = json.loads((out / "hy3_manifest.json").read_text())
    assert manifest["origin"] == {"repository": REPOSITORY, "revision": hub.commit}
    assert kept_sizes(tmp_path) == ([] if discard else shard_sizes(hub))
    assert not (out / PASSING_NAME).exists()
    hub.requests.clear()
    assert (
        run_remote(hub, tmp_path, discard, workers).stats is None
    )  # complete, by the hub's hashes
    assert data_requests(hub) == set()


def in_order(folder: Path, ordered: Path) -> Path:
    """The same checkpoint in shards as makers write them: neighbours lie together."""
    tensors: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
    ordered.mkdir()
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            (ordered / path.name).write_bytes(path.read_bytes())
    weight_map, names = {}, sorted(tensors)
    limit, number, part = sum(map(nbytes, tensors.values())) / ORDERED_SHARDS, 1, {}
    for name in names:
        part[name] = tensors[name]
        if sum(map(nbytes, part.values())) > limit or name == names[-1]:
            shard = f"model-{number:05d}-of-{ORDERED_SHARDS:05d}.safetensors"
            save_file(part, ordered / shard, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(part, shard)
            number, part = number + 1, {}
    (ordered / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    return ordered


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_source_never_takes_more_than_a_few_shards(
    folder: Path, tmp_path: Path, workers: int
) -> None:
    """Sizes on disk are sampled all through a run that is slowed down by its downloads."""
    ordered = in_order(folder, tmp_path / "ordered")
    run(ordered, tmp_path / "expected")
    with serve_hub(ordered) as hub:
        sizes, peak = shard_sizes(hub), peak_of_source(hub, tmp_path, workers)
        sent = sum(hub.sent[name] for name in shard_names(hub))
    # In work, finished and being recorded, a partner in the next one, and ahead.
    few = sum(sizes[-2 * workers - 1 - AHEAD :])
    assert max(sizes) <= peak <= few < 0.5 * sum(sizes)
    assert_same(tmp_path / "out", tree(tmp_path / "expected"))
    assert kept_sizes(tmp_path) == []
    assert sent <= sum(sizes) + len(sizes) * FIRST_REQUEST_BYTES  # each shard once, and headers


def peak_of_source(hub: Hub, tmp_path: Path, workers: int) -> int:
    """Quantizes; returns the most that shards took on disk at once."""
    passing, peak, done = tmp_path / "out" / PASSING_NAME, 0, threading.Event()
    for name in shard_names(hub):
        hub.faults[name] = [Fault(), Fault(seconds_per_chunk=0.01)]

    def sample() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, sum(sizes_in(passing)))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        run_remote(hub, tmp_path, workers=workers)
    finally:
        done.set()
        sampler.join()
    return peak


def sizes_in(folder: Path) -> Iterator[int]:
    try:
        for path in folder.iterdir():
            yield path.stat().st_size
    except OSError:
        return  # it comes and goes


@pytest.mark.parametrize(
    "slow", [6, *(pytest.param(number, marks=pytest.mark.long) for number in (0, 1, 3, 9, 11))]
)
def test_a_killed_run_goes_on(folder: Path, tmp_path: Path, slow: int) -> None:
    """What is durable is not fetched again, nor is what had arrived of the rest."""
    ordered = in_order(folder, tmp_path / "ordered")
    run(ordered, tmp_path / "expected")
    with serve_hub(ordered) as hub:
        finished = kill_at_shard(hub, tmp_path, slow)
        assert slow < 3 or finished
        hub.requests.clear()
        run_remote(hub, tmp_path)
        fetched = data_requests(hub)
    assert_same(tmp_path / "out", tree(tmp_path / "expected"))
    assert not (tmp_path / "out" / PASSING_NAME).exists()
    assert fetched and not fetched & finished


def kill_at_shard(hub: Hub, tmp_path: Path, slow: int) -> set[str]:
    """A run that dies while one shard arrives; returns the shards that it has finished."""
    names = shard_names(hub)
    hub.faults[names[slow]] = [Fault(), Fault(seconds_per_chunk=1)]
    child = os.fork()
    if child == 0:
        try:
            run_remote(hub, tmp_path)
        finally:
            os._exit(0)
    end = time.monotonic() + 60
    while names[slow] not in data_requests(hub):
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.5)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    return {name for name in names if (tmp_path / "out" / name).exists()}


def test_a_failing_shard_stops_the_run_and_what_is_finished_stays(
    hub: Hub, tmp_path: Path, expected: dict[str, str]
) -> None:
    names = shard_names(hub)
    hub.faults[names[4]] = [Fault(), Fault(2, flip_at=100_000)]
    with pytest.raises(InputError, match="arrived twice") as caught:
        run_remote(hub, tmp_path, workers=2)
    assert names[4] in caught.value.where
    assert len(list((tmp_path / "out").glob("*.safetensors"))) < SHARDS
    assert run_remote(hub, tmp_path, workers=2).resumed_shards > 0
    assert_same(tmp_path / "out", expected)


def test_another_commit_goes_on_unless_files_differ(hub: Hub, tmp_path: Path) -> None:
    """A push that leaves config, index and shards alone is the same source; another is refused."""
    names = shard_names(hub)
    hub.faults[names[4]] = [Fault(), Fault(2, flip_at=100_000)]
    with pytest.raises(InputError, match="arrived twice"):
        run_remote(hub, tmp_path)
    hub.commit = "3" * 40
    assert run_remote(hub, tmp_path).resumed_shards > 0
    manifest = json.loads((tmp_path / "out" / "hy3_manifest.json").read_text())
    assert manifest["origin"]["revision"] == hub.commit


def test_other_bytes_under_the_same_name_are_another_source(folder: Path, tmp_path: Path) -> None:
    changing = tmp_path / "changing"
    changing.mkdir()
    for path in folder.iterdir():
        (changing / path.name).write_bytes(path.read_bytes())
    with serve_hub(changing) as hub:
        names = shard_names(hub)
        hub.faults[names[4]] = [Fault(), Fault(2, flip_at=100_000)]
        with pytest.raises(InputError, match="arrived twice"):
            run_remote(hub, tmp_path)
        with (changing / names[9]).open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"?")
        hub.commit = "3" * 40
        with pytest.raises(InputError, match="another source") as caught:
            run_remote(hub, tmp_path)
    assert names[9] in caught.value.message


def test_a_shard_with_scales_of_others_stays_until_the_last_of_them(tmp_path: Path) -> None:
    """The first shard holds the scales of all: it is done first, and fetched once."""
    original = make_random(tmp_path / "original", seed=4, shards=3, num_experts=2)
    config = {"quant_method": "fp8", "activation_scheme": "static"}
    foreign = tmp_path / "foreign"
    write_foreign(original, foreign, tmp_path / "decoded", fp8_tensor, "_proj$", config)
    shards = {path: load_file(path) for path in sorted(foreign.glob("*.safetensors"))}
    first = next(iter(shards))
    for path, stored in shards.items():
        scales = {name: each for name, each in stored.items() if name.endswith("_scale")}
        shards[path] = {name: each for name, each in stored.items() if name not in scales}
        shards[first] |= scales
    for path, stored in shards.items():
        save_file(stored, path)
    write_index(foreign)
    run(foreign, tmp_path / "expected", decodes=True)
    with serve_hub(foreign) as hub:
        assert run_remote(hub, tmp_path, decodes=True).rounded_values
        requests = [each for each in hub.content_requests() if each.file == first.name]
    assert sum(not each.range or each.range[0] > 0 for each in requests) == 1
    assert_same(tmp_path / "out", tree(tmp_path / "expected"))

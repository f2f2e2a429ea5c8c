"""The quantizer's output: bytes, shared scales, refusals, and what compressed-tensors reads."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors import safe_open

from hy3.checkpoint.index import open_checkpoint
from hy3.checkpoint.manifest import read_manifest
from hy3.checkpoint.names import fused_with, is_routed_expert, module_of
from hy3.checkpoint.reader import TensorReader
from hy3.errors import CheckFailed, EnvironmentFault, InputError
from hy3.nvfp4.scales import tensor_scale
from hy3.nvfp4.tensor import quantize as quantize_tensor
from hy3.quantize.output_folder import OutputFolder
from hy3.quantize.pipeline import quantize, worker_limit
from hy3.quantize.shard_source import HeldShards, LocalShards
from hy3.quantize.stats import WeightStats
from hy3.quantize.stream import ShardStreamer
from support.killing import Place, kill_at
from support.quantizing import no_progress, plan_of, run, run_in_child, tree
from support.scripted import make_random
from support.weight_files import load_shards

SCHEME = QuantizationScheme(
    targets=["Linear"],
    weights=QuantizationArgs(
        num_bits=4, type="float", strategy="tensor_group", group_size=16, dynamic=False
    ),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random(tmp_path_factory.mktemp("source") / "model", seed=3, shards=4)


@pytest.fixture(scope="module")
def made(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "out"
    run(source, out)
    return out


@pytest.fixture
def own_source(source: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(source, tmp_path / "source"))


def test_same_bytes_for_any_number_of_workers(source: Path, made: Path, tmp_path: Path) -> None:
    for workers in (1, 2, 4):
        out = tmp_path / str(workers)
        run(source, out, workers=workers)
        assert tree(out) == tree(made)


def test_names_shards_and_copies_are_kept(source: Path, made: Path) -> None:
    before, after = open_checkpoint(source), open_checkpoint(made)
    assert list(before.headers) == list(after.headers)
    old, new = load_shards(source), load_shards(made)
    for name, shard in before.tensors.items():
        if is_routed_expert(name):
            parts = [f"{module_of(name)}.{part}" for part in ("weight_packed", "weight_scale")]
            assert {after.tensors[part] for part in parts} == {shard}
            assert name not in after.tensors
        else:
            assert after.tensors[name] == shard
            assert old[name].dtype == new[name].dtype
            assert torch.equal(old[name], new[name])


def test_experts_are_the_oracles_and_compressed_tensors_reads_it(source: Path, made: Path) -> None:
    old, new = load_shards(source), load_shards(made)
    pairs_across_shards = 0
    placed = open_checkpoint(source).tensors
    for name in list(filter(is_routed_expert, old))[::3]:
        module, partner = module_of(name), next(iter(fused_with(name)), None)
        largest = float(old[name].abs().max())
        if partner:
            largest = max(largest, float(old[partner].abs().max()))
            pairs_across_shards += placed[name] != placed[partner]
        wanted = quantize_tensor(old[name], tensor_scale(largest), "exact")
        state = {
            part: new[f"{module}.{part}"]
            for part in ("weight_packed", "weight_scale", "weight_global_scale")
        }
        assert torch.equal(state["weight_packed"], wanted.packed)
        assert torch.equal(state["weight_scale"].view(torch.uint8), wanted.scales)
        assert state["weight_global_scale"].tolist() == [wanted.divisor]
        theirs = NVFP4PackedCompressor.decompress(state, SCHEME)["weight"]
        assert torch.equal(theirs.view(torch.int16), wanted.dequantize().view(torch.int16))
    assert pairs_across_shards > 0


def test_gate_and_up_share_their_scale(made: Path) -> None:
    new = load_shards(made)
    gates = [name for name in new if name.endswith("gate_proj.weight_global_scale")]
    assert gates
    for name in gates:
        assert torch.equal(new[name], new[name.replace("gate_proj", "up_proj")])


def test_manifest_names_every_file_and_its_hash(source: Path, made: Path) -> None:
    manifest = read_manifest(made)
    assert manifest is not None
    found = tree(made)
    found.pop("hy3_manifest.json")
    assert {name: each.sha256 for name, each in manifest.outputs.items()} == found
    for name, each in manifest.source.items():
        assert each.sha256 == hashlib.sha256((source / name).read_bytes()).hexdigest()
    assert len(manifest.source) == 4 + 2
    text = (made / "hy3_manifest.json").read_text()
    assert str(source) not in text and os.uname().nodename not in text


def test_files_open_with_the_safetensors_package(made: Path) -> None:
    paths = list(made.glob("*.safetensors"))
    assert len(paths) == 4
    for path in paths:
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt"}
            assert all(file.get_tensor(name) is not None for name in file.keys())  # noqa: SIM118


def test_mtp_bf16_leaves_its_experts(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "out", mtp="bf16")
    old, new = load_shards(source), load_shards(tmp_path / "out")
    mtp = "model.layers.3."
    assert {n for n in new if n.startswith(mtp)} == {n for n in old if n.startswith(mtp)}
    assert "model.layers.2.mlp.experts.0.up_proj.weight_packed" in new
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert r"re:.*layers\.3\..*" in config["quantization_config"]["ignore"]


def test_a_rerun_of_a_complete_folder_changes_nothing(
    source: Path, made: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(made, tmp_path / "out"))
    assert run(source, out).stats is None
    assert tree(out) == tree(made)


def test_a_complete_folder_with_a_torn_file_is_not_complete(
    source: Path, made: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(made, tmp_path / "out"))
    with (out / "tokenizer.json").open("ab") as file:
        file.write(b" ")
    with pytest.raises(CheckFailed, match="another size"):
        run(source, out)


@pytest.mark.parametrize("changed", [{"scales": "max"}, {"mtp": "bf16"}])
def test_other_parameters_are_refused(
    source: Path, made: Path, tmp_path: Path, changed: dict[str, str]
) -> None:
    out = Path(shutil.copytree(made, tmp_path / "out"))
    key, value = next(iter(changed.items()))
    with pytest.raises(InputError, match=f"holds work with {key}"):
        run(source, out, **changed)
    interrupted = interrupt(source, tmp_path / "half")
    with pytest.raises(InputError, match=f"holds work with {key}.*not '{value}'"):
        run(source, interrupted, **changed)


def interrupt(source: Path, out: Path) -> Path:
    """What a run leaves that was stopped before its first shard was finished."""
    with OutputFolder(out, plan_of(source)) as folder:
        folder.resume()
    return out


def test_another_source_is_refused(own_source: Path, made: Path, tmp_path: Path) -> None:
    half = interrupt(own_source, tmp_path / "half")
    shard = sorted(own_source.glob("*.safetensors"))[1]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1  # same size; only its time and this bit tell
    shard.write_bytes(data)
    with pytest.raises(InputError, match=f"another source: {shard.name} differs"):
        run(own_source, half)
    complete = Path(shutil.copytree(made, tmp_path / "complete"))
    with pytest.raises(InputError, match=f"another source: {shard.name} differs"):
        run(own_source, complete)


def test_a_used_folder_is_refused_and_left_as_it_was(source: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"not empty: it holds 'notes\.txt'"):
        run(source, tmp_path)
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_second_process_is_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with OutputFolder(out, plan_of(source)) as folder:
        folder.resume()
        assert run_in_child(source, out, lambda: None) == 9 << 8
        with pytest.raises(EnvironmentFault, match="another process"):
            run(source, out)
    run(source, out)


def test_source_changed_under_way(own_source: Path, tmp_path: Path) -> None:
    plan = plan_of(own_source)
    shard = sorted(own_source.glob("*.safetensors"))[0]
    os.utime(shard, ns=(0, 1))
    with pytest.raises(InputError, match="changed while it was being read"):
        quantize(plan, tmp_path / "out", 1, no_progress)
    assert not (tmp_path / "out" / shard.name).exists()
    assert not list((tmp_path / "out").glob("*.tmp.tmp"))


def swap_shards(folder: Path, one: str, other: str) -> None:
    """Exchange the names of two shards, in the index as well."""
    names = {one: other, other: one}
    (folder / one).rename(folder / "x")
    (folder / other).rename(folder / one)
    (folder / "x").rename(folder / other)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    places = {name: names.get(shard, shard) for name, shard in index["weight_map"].items()}
    path.write_text(json.dumps(index | {"weight_map": places}))


def test_a_full_disk_keeps_what_is_finished(own_source: Path, tmp_path: Path) -> None:
    """A limit on file size stands for a full disk: a write fails in the middle of a shard."""
    shards = sorted(path.name for path in own_source.glob("*.safetensors"))
    largest = max(shards, key=lambda name: (own_source / name).stat().st_size)
    if largest != shards[2]:
        swap_shards(own_source, largest, shards[2])
    whole, out = tmp_path / "whole", tmp_path / "out"
    run(own_source, whole)
    size = (whole / shards[2]).stat().st_size - 1

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    assert run_in_child(own_source, out, limit, workers=1) == 9 << 8
    assert list(out.glob("*.safetensors.tmp"))
    assert run(own_source, out).resumed_shards >= 2
    assert tree(out) == tree(whole)


def test_no_space_is_said_before_the_work(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(EnvironmentFault, match=r"has 1\.00 kB free"):
        run(source, tmp_path / "out")


def test_a_changed_output_is_made_again(source: Path, made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    plan = plan_of(source)
    shards = list(plan.shards)
    with OutputFolder(out, plan) as folder, TensorReader(plan.checkpoint) as reader:
        folder.resume()
        held = HeldShards(LocalShards(source, plan.stamps), reader)
        streamer = ShardStreamer(plan, held, out, lambda *_: None, {})
        for name in shards[:2]:
            folder.record(name, streamer.run(name))
    os.utime(out / shards[0], ns=(0, 0))
    assert run(source, out).resumed_shards == 1
    assert tree(out) == tree(made)


def test_worker_limit(source: Path) -> None:
    plan = plan_of(source)
    assert worker_limit(plan, 1) == 1
    assert worker_limit(plan, 64) == 4  # no more than shards


def test_progress_adds_up_to_the_source(source: Path, tmp_path: Path) -> None:
    """Bytes and statistics; a resumed run begins with the statistics of what was finished."""
    seen: dict[str, list[int]] = {}
    told = WeightStats()

    @contextmanager
    def progress(label: str, total: int):
        seen[label] = [total, 0]

        def advance(count: int, stats: WeightStats | None = None) -> None:
            nonlocal told
            seen[label][1] += count
            told += stats or WeightStats()

        yield advance

    plan, out = plan_of(source), tmp_path / "out"
    wanted = quantize(plan, out, 1, progress).stats
    assert seen == {"quantize": [plan.source_bytes, plan.source_bytes]}
    energy = sum(each.energy for each in wanted.values())
    assert told.energy == pytest.approx(energy) and told.error < told.max_error

    whole, told = told, WeightStats()
    killed = tmp_path / "killed"
    assert run_in_child(source, killed, kill_at(killed, Place("record", 8, "after")), 1) != 0
    resumed = quantize(plan, killed, 1, progress)
    assert resumed.resumed_shards > 0
    assert seen["quantize"][0] < plan.source_bytes
    assert told.error == pytest.approx(whole.error)

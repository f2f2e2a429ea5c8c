"""Faults planted into a quantized checkpoint, and what ``verify`` must say of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.index import open_checkpoint
from hy3.checkpoint.manifest import MANIFEST_NAME, read_manifest
from hy3.checkpoint.reader import TensorReader
from hy3.quantize.verdict import Check, Verdict
from support.quantized import write_contents, write_index, write_manifest

GATE = "model.layers.1.mlp.experts.0.gate_proj"
MTP_DOWN = "model.layers.3.mlp.experts.3.down_proj"
BIAS = "model.layers.2.mlp.expert_bias"
PROVED = {
    *("files", "tensors", "dtypes", "recipe", "model_dtype"),
    *("scheme", "vllm_matching", "sglang_matching"),
    *("tensor_scales", "scale_nan", "scale_codes", "fp8_scales", "finite", "hashes"),
}
FROM_SOURCE = {"copied_bytes", "group_errors", "source_hashes"}
Contents = dict[str, tuple[TensorSpec, np.ndarray]]
Change = Callable[[Contents], Contents | None]  # in place, or a new shard


def rewrite(source: Path, out: Path, change: Change) -> None:
    """Change tensors and sign the result, so that only the content is at fault."""
    parameters = read_manifest(out).parameters
    checkpoint = open_checkpoint(out)
    with TensorReader(checkpoint) as reader:
        for shard, header in checkpoint.headers.items():
            contents = {
                name: (info.spec, reader.array(name)) for name, info in header.tensors.items()
            }
            contents = change(contents) or contents
            write_contents(out / shard, list(contents.values()))
    write_index(out)
    write_manifest(source, out, parameters)


def edit_config(source: Path, out: Path, change: Callable[[dict], object]) -> None:
    config = json.loads((out / "config.json").read_text())
    change(config)
    (out / "config.json").write_text(json.dumps(config))
    manifest = read_manifest(out)
    if manifest:
        write_manifest(source, out, manifest.parameters)


def make_foreign(out: Path) -> None:
    (out / MANIFEST_NAME).unlink()


def drop(name: str) -> Change:
    return lambda contents: contents.pop(name, None) and None


def alter(name: str, edit: Callable[[np.ndarray], None]) -> Change:
    def change(contents):
        if name in contents:
            spec, data = contents[name]
            data = data.copy()
            edit(data.reshape(-1))
            contents[name] = (spec, data)

    return change


def put(index: int, value: float) -> Callable[[np.ndarray], None]:
    return lambda data: data.__setitem__(index, value)


def rename(old: str, new: str, invert: bool = False) -> Change:
    def change(contents):
        for name in [name for name in contents if name.endswith(old)]:
            spec, data = contents.pop(name)
            name = name.removesuffix(old) + new
            data = 1 / data if invert else data
            contents[name] = (TensorSpec(name, spec.dtype, spec.shape), data)

    return change


def flip_byte(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def statuses(verdict: Verdict, *wanted: str) -> set[str]:
    return {check.id for check in verdict.checks if check.status in wanted}


def only_failure(verdict: Verdict, identity: str, *names: str) -> None:
    """Exactly one check fails, and it names the culprits."""
    assert statuses(verdict, "fail") == {identity}, [vars(check) for check in verdict.checks]
    assert not verdict.ok
    check = check_of(verdict, identity)
    for name in names:
        assert any(name in each for each in (*check.tensors, check.detail)), check


def check_of(verdict: Verdict, identity: str) -> Check:
    """One check by its id."""
    return next(check for check in verdict.checks if check.id == identity)

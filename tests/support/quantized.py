"""A plain in-memory quantizer for tests: the oracle's numbers in the layout of ``quantize``."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from hy3.checkpoint.file_hash import hash_file
from hy3.checkpoint.forms import NVFP4, stored_specs
from hy3.checkpoint.header import TensorSpec, read_header
from hy3.checkpoint.index import INDEX_NAME, open_checkpoint
from hy3.checkpoint.manifest import MANIFEST_NAME, Manifest, Parameters
from hy3.checkpoint.model_config import load_config
from hy3.checkpoint.names import fused_with, is_mtp, is_routed_expert
from hy3.checkpoint.reader import TensorReader
from hy3.checkpoint.scheme_writer import quantization_config
from hy3.checkpoint.writer import ShardWriter
from hy3.nvfp4.scales import tensor_scale
from hy3.nvfp4.tensor import quantize
from support.recipes import PARAMETERS, assigned

Contents = list[tuple[TensorSpec, np.ndarray]]


def make_quantized(source: Path, out: Path, rule: str = "exact", mtp: str = "same") -> Path:
    """Quantize the routed experts of ``source``; writes every file, the manifest included."""
    out.mkdir(parents=True)
    checkpoint, config = open_checkpoint(source), load_config(source)
    with TensorReader(checkpoint) as reader:
        for shard, header in checkpoint.headers.items():
            contents: Contents = []
            for name, info in header.tensors.items():
                packed = is_routed_expert(name) and (mtp == "same" or not is_mtp(name, config))
                if packed:
                    contents += _pack(reader, info.spec, rule)
                else:
                    contents.append((info.spec, reader.read(name)))
            write_contents(out / shard, contents)
    for path in source.iterdir():
        if path.suffix != ".safetensors" and path.name not in ("config.json", INDEX_NAME):
            shutil.copy(path, out / path.name)
    raw = json.loads((source / "config.json").read_text())
    raw |= {"dtype": "bfloat16"}
    assignment = assigned(config, mtp=mtp)
    raw["quantization_config"] = quantization_config(config, assignment.forms, assignment.layout)
    (out / "config.json").write_text(json.dumps(raw))
    write_index(out)
    write_manifest(source, out, replace(PARAMETERS, scales=rule, mtp=mtp))
    return out


def weight_of(reader: TensorReader, name: str) -> torch.Tensor:
    """One BF16 tensor in fp32."""
    return torch.from_numpy(reader.array(name).view(np.int16)).view(torch.bfloat16).float()


def _pack(reader: TensorReader, spec: TensorSpec, rule: str) -> Contents:
    weight = weight_of(reader, spec.name)
    others = [weight_of(reader, name) for name in fused_with(spec.name)]
    t = tensor_scale(max(float(each.abs().max()) for each in (weight, *others)))
    tensor = quantize(weight, t, rule)
    stored = (
        tensor.packed.numpy(),
        tensor.scales.numpy(),
        np.array([tensor.divisor], np.float32),
    )
    return list(zip(stored_specs(spec, NVFP4), stored, strict=True))


def write_contents(path: Path, contents: Contents) -> None:
    """One shard from whole tensors."""
    with ShardWriter(path, [spec for spec, _ in contents]) as shard:
        for spec, data in contents:
            shard.write(spec.name, np.ascontiguousarray(data))
        shard.finish()


def write_index(folder: Path) -> None:
    """Make the index of whatever shards the folder holds."""
    (folder / INDEX_NAME).unlink(missing_ok=True)
    weight_map: dict[str, str] = {}
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        header = read_header(path)
        weight_map |= dict.fromkeys(header.tensors, path.name)
        total += sum(info.nbytes for info in header.tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_NAME).write_text(json.dumps(index))


def write_manifest(source: Path, out: Path, parameters: Parameters) -> None:
    """Hash everything again, as if the folder had been written as it is."""
    (out / MANIFEST_NAME).unlink(missing_ok=True)
    sources = [*source.glob("*.safetensors"), source / "config.json", source / INDEX_NAME]
    manifest = Manifest(
        parameters,
        {path.name: hash_file(path) for path in sources},
        {path.name: hash_file(path) for path in out.iterdir()},
    )
    (out / MANIFEST_NAME).write_bytes(manifest.encode())

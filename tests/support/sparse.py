"""Checkpoints with the headers of the real thing and holes for data: no disk is used."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hy3.checkpoint.header import TensorSpec, encode_header
from hy3.checkpoint.model_config import parse_config
from hy3.checkpoint.names import expected_tensors
from hy3.checkpoint.scheme_writer import quantization_config
from support.recipes import assigned, written_specs

# Where the published files put some tensors: shard of 99, counted from 1.
_PUBLISHED_PLACES = [
    (re.compile(r"model\.layers\.0\..+"), 90),
    (re.compile(r"model\.layers\.(79|80)\.self_attn\.[qkv]_proj\..+"), 66),
    (re.compile(r"model\.layers\.80\.eh_proj\..+"), 18),
    (re.compile(r"model\.layers\.80\.(enorm|hnorm|final_layernorm)\..+"), 91),
]


def write_sparse(
    folder: Path, raw_config: Mapping[str, Any], shards: int = 99, packed: bool = False
) -> Path:
    """Write config, index and sparse shards; the layers are scattered, gate from up as well.

    ``packed`` gives the NVFP4 form that ``quantize`` writes. All data reads as zeros.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = parse_config(dict(raw_config))
    specs = written_specs(config) if packed else expected_tensors(config)
    files = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    contents: dict[str, list[TensorSpec]] = {name: [] for name in files}
    weight_map = {name: files[_place(name, shards)] for name in specs}
    for name, spec in specs.items():
        contents[weight_map[name]].append(spec)
    for name, tensors in contents.items():
        header = encode_header(tensors, {"format": "pt"})
        (folder / name).write_bytes(header)
        os.truncate(folder / name, len(header) + sum(spec.nbytes for spec in tensors))
    total = sum(spec.nbytes for spec in specs.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    written = dict(raw_config)
    if packed:
        assignment = assigned(config)
        written["quantization_config"] = quantization_config(
            config, assignment.forms, assignment.layout
        )
    (folder / "config.json").write_text(json.dumps(written))
    return folder


def _place(name: str, shards: int) -> int:
    for pattern, shard in _PUBLISHED_PLACES:
        if shards == 99 and pattern.fullmatch(name):
            return shard - 1
    module = name.rpartition(".")[0] or name
    return zlib.crc32(module.encode()) % shards

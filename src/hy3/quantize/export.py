"""The small files beside the shards: config, index, tokenizer and generation settings.

All are edits of the source's own JSON, never rebuilt through a class: engines need keys that the
classes of other libraries drop.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hy3.chat.markers import find_marker_suffix
from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.index import INDEX_NAME
from hy3.checkpoint.json_file import read_json_object
from hy3.checkpoint.model_config import CONFIG_NAME
from hy3.checkpoint.quantization_config import METHOD_MODELOPT
from hy3.checkpoint.scheme_writer import MODELOPT_FILE, modelopt_file
from hy3.errors import InputError

COPIED = ("*.json", "*.jinja", "*.tiktoken", "*.model", "*.txt", "*.py", "LICENSE*", "NOTICE*")
_MADE_HERE = (CONFIG_NAME, "*.safetensors.index.json", MODELOPT_FILE, "README.md", "hy3_*", ".*")


def export_config(raw: dict[str, Any], quantization_config: dict[str, Any] | None) -> bytes:
    """config.json with its dtype named; None removes the quantization_config.

    Without a dtype SGLang takes float16, in which some of its kernels fail.
    """
    kept = {key: value for key, value in raw.items() if key != "quantization_config"}
    kept |= {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    if quantization_config is not None:
        kept["quantization_config"] = quantization_config
    return _encode(kept)


def export_index(shards: dict[str, list[TensorSpec]]) -> bytes:
    """The index of the tensors that each shard holds."""
    weight_map = {spec.name: shard for shard, specs in shards.items() for spec in specs}
    total = sum(spec.nbytes for specs in shards.values() for spec in specs)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return _encode(index)


def export_small_files(
    source: Path,
    raw: dict[str, Any],
    quantization_config: dict[str, Any] | None,
    shards: dict[str, list[TensorSpec]],
) -> dict[str, bytes]:
    """File name -> content of all but shards, card and manifest."""
    files = dict(_side_files(source))
    files[CONFIG_NAME] = export_config(raw, quantization_config)
    if quantization_config and quantization_config["quant_method"] == METHOD_MODELOPT:
        files[MODELOPT_FILE] = _encode(modelopt_file(quantization_config))
    if (source / INDEX_NAME).exists():
        files[INDEX_NAME] = export_index(shards)
    return files


def _side_files(source: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(source.iterdir()):
        if not path.is_file() or _matches(path.name, _MADE_HERE):
            continue
        if path.name == "tokenizer_config.json":
            yield path.name, with_token_suffix(source, path)
        elif path.name == "generation_config.json":
            yield path.name, without_unusable_top_k(path)
        elif _matches(path.name, COPIED):
            yield path.name, _read(path)


def with_token_suffix(source: Path, path: Path) -> bytes:
    """vLLM's parsers look for the markers' suffix under this key and nowhere else."""
    suffix = find_marker_suffix(source)
    config = read_json_object(path)
    if not suffix or config.get("token_suffix") == suffix:
        return _read(path)
    return _encode(config | {"token_suffix": suffix})


def without_unusable_top_k(path: Path) -> bytes:
    """SGLang refuses requests whose top_k is neither -1 nor positive, a default of 0 included."""
    config = read_json_object(path)
    top_k = config.get("top_k", -1)
    if type(top_k) is int and (top_k == -1 or top_k >= 1):
        return _read(path)
    return _encode({key: value for key, value in config.items() if key != "top_k"})


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})", hint="check its permissions", where=str(path)
        ) from error


def _encode(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()

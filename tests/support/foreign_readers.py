"""Every reader of files that somebody else may have made, with a sound file for each."""

from __future__ import annotations

import json
from pathlib import Path

from hy3.chat.markers import read_marker_suffix
from hy3.checkpoint.census import take_census
from hy3.checkpoint.engine_rules import RuleConflict
from hy3.checkpoint.file_hash import FileHash
from hy3.checkpoint.forms import FP8_FORMS
from hy3.checkpoint.header import TensorSpec, encode_header, read_header
from hy3.checkpoint.index import INDEX_NAME, SINGLE_NAME, open_checkpoint
from hy3.checkpoint.json_file import read_json_object
from hy3.checkpoint.manifest import MANIFEST_NAME, Manifest, Origin, read_manifest
from hy3.checkpoint.model_config import CONFIG_NAME, load_config
from hy3.checkpoint.quantization_config import parse_quantization_config
from hy3.checkpoint.scheme_writer import quantization_config
from hy3.quantize.assignment import assign
from hy3.quantize.check_layout import check_layout
from hy3.quantize.export import export_small_files
from hy3.quantize.journal import FinishedTensor, Journal
from hy3.quantize.recipe import load_recipe
from hy3.quantize.resume import (
    RESUME_NAME,
    FileStamp,
    FinishedShard,
    ResumeState,
    read_resume_state,
)
from hy3.quantize.stats import WeightStats
from hy3.server.defaults import load_defaults
from support.fuzzing import Reader
from support.recipes import LAYOUT, PARAMETERS
from support.tiny import TINY

MODULES = ("model.layers.1.self_attn.qkv_proj", "model.layers.1.mlp.experts.0.gate_proj", "")

SPECS = [
    TensorSpec("a.weight", "BF16", (4, 4)),
    TensorSpec("b.weight_packed", "U8", (4, 2)),
    TensorSpec("b.weight_scale", "F8_E4M3", (4,)),
    TensorSpec("empty", "F32", (0, 7)),
]
HEADER = encode_header(SPECS, {"format": "pt"})[8:]
DATA = bytes(range(44))
SHARD = len(HEADER).to_bytes(8, "little") + HEADER + DATA
INDEX = json.dumps(
    {
        "metadata": {"total_size": 44},
        "weight_map": {spec.name: SINGLE_NAME for spec in SPECS},
    }
).encode()

_CHECKPOINT = open_checkpoint(TINY)
_CONFIG = load_config(TINY)
_CENSUS = take_census(_CHECKPOINT, _CONFIG)
_RAW = json.loads((TINY / CONFIG_NAME).read_text())
_FORMS = assign(_CONFIG, load_recipe("fp8"), "same", LAYOUT).forms
_SCHEME = quantization_config(_CONFIG, _FORMS, LAYOUT)
CONFIG = json.dumps(_RAW | {"quantization_config": _SCHEME}).encode()
_REPORT_BYTES = 1024 * len(_CHECKPOINT.tensors)  # a note on each
_HASH = FileHash("a" * 64, 5)
_MANIFEST = Manifest(
    PARAMETERS, {"a": _HASH, "ä": _HASH}, {"b": _HASH}, Origin("tencent/Hy3", "0" * 40)
)
_STATS = WeightStats(0.1, 0.2, 3.0, (0,) * 33)
_STATE = ResumeState(
    PARAMETERS,
    {"config.json": FileStamp(10, 1_700_000_000_123_456_789)},
    {
        "a.safetensors": FinishedShard(
            _HASH, _HASH, FileStamp(4, 2**62), {"routed_expert@1": _STATS}, {"w": 1.5}
        )
    },
)
_LINE = FinishedTensor("a" * 64, "b" * 64, 1.5, _STATS).encode()
MODELOPT = {
    "producer": {"name": "modelopt"},
    "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*router*"]},
}
RECIPE = b"""description = "a few"
fp8_activations = "dynamic"
rules = [{class = "attention", format = "fp8"}, {match = ".*up_proj.*", format = "nvfp4"},
  {class = "*", format = "copy"}]
"""
GENERATION = b'{"eos_token_id": [120025], "top_k": 0, "top_p": 1.0, "temperature": 0.9}'
TOKENIZER = {
    "added_tokens": [{"id": 1, "content": "<think:opensource>", "special": False}],
    "model": {"type": "BPE", "vocab": {"a": 0, "</think:opensource>": 2}, "merges": []},
}
TOKENIZER_CONFIG = {"eos_token": {"content": "<｜hy_eos:x｜>"}, "model_max_length": 10**30}


def _read_config(folder: Path) -> None:
    load_config(folder)
    path = folder / CONFIG_NAME
    parsed = parse_quantization_config(read_json_object(path), str(path))
    for ask in (parsed.vllm_scheme, parsed.sglang_scheme) if parsed else ():
        for module in MODULES:
            try:
                assert ask(module) in (None, "nvfp4", *FP8_FORMS, "other")
            except RuleConflict as conflict:
                assert str(conflict)


def _judge_layout(folder: Path) -> None:
    manifest = read_manifest(folder)
    for check in check_layout(folder, _CHECKPOINT, _CONFIG, _CENSUS, manifest):
        assert check.status in ("pass", "fail", "warn", "not_proved") and check.detail


def _export(folder: Path) -> None:
    files = export_small_files(folder, _RAW, None, {})
    for name, data in files.items():
        assert name == "tokenizer.json" or isinstance(json.loads(data), dict)


def _read_journal(folder: Path) -> None:
    with Journal(folder / "a.journal") as journal:
        for finished in journal.found:
            assert finished.encode() == _LINE


_SMALL = {
    "tokenizer.json": json.dumps(TOKENIZER).encode(),
    "tokenizer_config.json": json.dumps(TOKENIZER_CONFIG).encode(),
    "generation_config.json": GENERATION,
}


def _small(file: str, read: object) -> Reader:
    beside = {name: data for name, data in _SMALL.items() if name != file}
    return Reader(file, _SMALL[file], read, beside)  # type: ignore[arg-type]


READERS: dict[str, Reader] = {
    "header": Reader(SINGLE_NAME, SHARD, lambda folder: read_header(folder / SINGLE_NAME)),
    "checkpoint": Reader(SINGLE_NAME, SHARD, open_checkpoint, {INDEX_NAME: INDEX}),
    "index": Reader(INDEX_NAME, INDEX, open_checkpoint, {SINGLE_NAME: SHARD}),
    "config": Reader(CONFIG_NAME, CONFIG, _read_config),
    "layout": Reader(CONFIG_NAME, CONFIG, _judge_layout, own_bytes=_REPORT_BYTES),
    "modelopt": Reader(
        "hf_quant_config.json",
        json.dumps(MODELOPT).encode(),
        _judge_layout,
        {CONFIG_NAME: json.dumps(_RAW).encode()},
        _REPORT_BYTES,
    ),
    "manifest": Reader(MANIFEST_NAME, _MANIFEST.encode(), read_manifest),
    "recipe of the manifest": Reader(
        MANIFEST_NAME, _MANIFEST.encode(), _judge_layout, {CONFIG_NAME: CONFIG}, _REPORT_BYTES
    ),
    "recipe": Reader(
        "r.toml",
        RECIPE,
        lambda folder: load_recipe(str(folder / "r.toml")),
        own_bytes=2**20,
        named="recipe r",
    ),
    "resume": Reader(RESUME_NAME, _STATE.encode(), read_resume_state),
    "journal": Reader("a.journal", _LINE * 3, _read_journal),
    "tokenizer": _small("tokenizer.json", read_marker_suffix),
    "tokenizer config": _small("tokenizer_config.json", read_marker_suffix),
    "export of the tokenizer": _small("tokenizer_config.json", _export),
    "export of the generation": _small("generation_config.json", _export),
    "defaults": _small("generation_config.json", load_defaults),
}

"""``repair``: the metadata of a checkpoint that engines stumble over, set right; weights stay.

Four things: the marker suffix that vLLM's parsers look for, the dtype that SGLang needs, a top_k
that SGLang refuses, and an ignore list that leaves linears matched or unmatched by mistake. Every
file that changes is kept beside itself first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hy3.checkpoint.census import Census, take_census
from hy3.checkpoint.file_hash import hash_bytes
from hy3.checkpoint.forms import BF16, NVFP4
from hy3.checkpoint.index import Checkpoint, open_checkpoint
from hy3.checkpoint.json_file import read_json_object
from hy3.checkpoint.manifest import MANIFEST_NAME, read_manifest
from hy3.checkpoint.model_config import CONFIG_NAME, Hy3Config, parse_config
from hy3.checkpoint.names import is_mtp, is_routed_expert
from hy3.checkpoint.quantization_config import (
    METHOD_COMPRESSED_TENSORS,
    parse_quantization_config,
)
from hy3.checkpoint.scheme_writer import quantization_config
from hy3.checkpoint.writer import write_file_durably
from hy3.errors import InputError
from hy3.quantize.check_layout import check_layout
from hy3.quantize.export import export_config, with_token_suffix, without_unusable_top_k

_TOKENIZER, _GENERATION = "tokenizer_config.json", "generation_config.json"
_MATCHING = ("vllm_matching", "sglang_matching")


@dataclass(frozen=True)
class Change:
    """One key of one file, as it is and as it should be; None where it is not there."""

    file: str
    key: str
    before: Any
    after: Any


@dataclass(frozen=True)
class RepairPlan:
    """What would be written, and what is wrong but not for metadata to mend."""

    folder: Path
    changes: tuple[Change, ...]
    files: dict[str, bytes]  # file name -> its new content
    left: tuple[str, ...]


def plan_repair(folder: Path) -> RepairPlan:
    """Look at the small files and the headers; writes nothing.

    Raises:
        InputError: when the folder holds no sound checkpoint.
    """
    raw = read_json_object(folder / CONFIG_NAME)
    config = parse_config(raw, where=str(folder / CONFIG_NAME))
    checkpoint = open_checkpoint(folder)
    mended, left = _mend_config(folder, raw, config, checkpoint)
    files = {CONFIG_NAME: mended}
    for name, mend in (
        (_TOKENIZER, lambda path: with_token_suffix(folder, path)),
        (_GENERATION, without_unusable_top_k),
    ):
        if (folder / name).is_file():
            files[name] = mend(folder / name)
    changes: list[Change] = []
    for name, data in list(files.items()):
        found = list(_changes(name, read_json_object(folder / name), json.loads(data)))
        changes += found
        if not found:
            del files[name]
    return RepairPlan(folder, tuple(changes), files, tuple(left))


def repair(plan: RepairPlan) -> list[str]:
    """Write the files of a plan, each kept beside itself first; returns the backups' names.

    A manifest of ours is brought in line first: until the files are, ``verify`` says which are
    not, and a second repair still finds them. After them nothing would be left to find.
    """
    backups = []
    names = list(plan.files)
    manifest = read_manifest(plan.folder) if names else None
    for name in [*names, *([MANIFEST_NAME] if manifest else [])]:
        backup = _free_name(plan.folder, name)
        write_file_durably(backup, (plan.folder / name).read_bytes())
        backups.append(backup.name)
    if manifest:
        outputs = manifest.outputs | {name: hash_bytes(data) for name, data in plan.files.items()}
        new = replace(manifest, outputs=outputs)
        write_file_durably(plan.folder / MANIFEST_NAME, new.encode())
    for name, data in plan.files.items():
        write_file_durably(plan.folder / name, data)
    return backups


def _mend_config(
    folder: Path, raw: dict[str, Any], config: Hy3Config, checkpoint: Checkpoint
) -> tuple[bytes, list[str]]:
    """config.json with its dtype, and with an ignore list that both engines read right."""
    census, manifest = take_census(checkpoint, config), read_manifest(folder)

    def failing(as_it_is: dict[str, Any]) -> dict[str, str]:
        checks = check_layout(folder, checkpoint, config, census, manifest, as_it_is)
        return {each.id: each.detail for each in checks if each.status == "fail"}

    quantization, wrong = raw.get("quantization_config"), failing(raw)
    if wrong.keys() & set(_MATCHING):
        ignore = _right_ignore(quantization, config, census)
        if isinstance(quantization, dict) and ignore is not None:
            quantization = quantization | {"ignore": ignore}
            wrong = failing(raw | {"quantization_config": quantization})
    left = [f"{identity}: {detail}" for identity, detail in wrong.items()]
    return export_config(raw, quantization), left


def _right_ignore(quantization: Any, config: Hy3Config, census: Census) -> list[str] | None:
    """The ignore list of a file whose routed experts alone are NVFP4; None for any other."""
    try:
        parsed = parse_quantization_config({"quantization_config": quantization})
    except InputError:
        return None
    if parsed is None or parsed.method != METHOD_COMPRESSED_TENSORS:
        return None
    if {group.scheme for group in parsed.groups} != {NVFP4}:
        return None
    packed = {name for name, form in census.forms.items() if form == NVFP4}
    others = {form for name, form in census.forms.items() if name not in packed}
    trunk = {n for n in census.forms if is_routed_expert(n) and not is_mtp(n, config)}
    drafter = {n for n in census.forms if is_routed_expert(n) and is_mtp(n, config)}
    if others - {BF16} or packed not in (trunk, trunk | drafter):
        return None
    written = quantization_config(config, census.forms, METHOD_COMPRESSED_TENSORS)
    ignore: list[str] = written["ignore"]
    return ignore


def _changes(name: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change]:
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if key == "quantization_config" and isinstance(old, dict) and isinstance(new, dict):
            for inner in _changes(name, old, new):
                yield replace(inner, key=f"{key}.{inner.key}")
        elif old != new:
            yield Change(name, key, old, new)


def _free_name(folder: Path, name: str) -> Path:
    """The first of ``name.bak``, ``name.bak2``, ... that is not taken."""
    path, count = folder / f"{name}.bak", 1
    while path.exists():
        count += 1
        path = folder / f"{name}.bak{count}"
    return path

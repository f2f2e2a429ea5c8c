"""Checks of whole files against the hashes that a manifest keeps of output and source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hy3.checkpoint.file_hash import FileHash, hash_file
from hy3.checkpoint.manifest import MANIFEST_NAME, Manifest
from hy3.checkpoint.model_config import CONFIG_NAME
from hy3.quantize.verdict import Check, judge, not_proved

_NO_MANIFEST = "there is no manifest to compare with"


def check_hashes(
    folder: Path, manifest: Manifest | None, shard_hashes: Mapping[str, FileHash]
) -> Check:
    """Every file of the manifest against its bytes; hashes of shards already read are given."""
    if manifest is None:
        return not_proved("hashes", _NO_MANIFEST)
    faults = _differences(folder, manifest.outputs, shard_hashes, "not the file that was written")
    extra = sorted(
        path.name
        for path in folder.iterdir()
        if path.name not in manifest.outputs and path.name != MANIFEST_NAME
    )
    if extra and not faults:
        detail = "all files are as written; the folder holds others too"
        return Check("hashes", "warn", detail, tuple(extra))
    return judge(
        "hashes", faults, "files differ from the manifest", f"{len(manifest.outputs)} files match"
    )


def check_source_hashes(
    folder: Path, manifest: Manifest | None, shard_hashes: Mapping[str, FileHash]
) -> Check:
    """Whether the given source is the one that the manifest names."""
    if manifest is None:
        return not_proved("source_hashes", _NO_MANIFEST)
    faults = _differences(folder, manifest.source, shard_hashes, "another file")
    fine = f"{len(manifest.source)} files are the ones that were quantized"
    return judge("source_hashes", faults, "files of the source are not those of the manifest", fine)


def _differences(
    folder: Path, listed: Mapping[str, FileHash], known: Mapping[str, FileHash], verdict: str
) -> list[str]:
    # What engines read as weights must be proved, even where a manifest forgets it.
    forgotten = sorted({*known, CONFIG_NAME} - listed.keys())
    faults = [f"{name} is not in the manifest" for name in forgotten]
    for name, wanted in listed.items():
        path = folder / name
        if not path.is_file():
            faults.append(f"{name} is missing")
        elif (known.get(name) or hash_file(path)) != wanted:
            faults.append(f"{name} is {verdict}")
    return faults

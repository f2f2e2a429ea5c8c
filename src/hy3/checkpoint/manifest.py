"""``Manifest``: what ``quantize`` promises about its output and ``verify`` holds it to.

It lies in the output as ``hy3_manifest.json`` and holds parameters and hashes only: no arguments,
paths, hosts or dates, so that equal work gives equal bytes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hy3.checkpoint.file_hash import FileHash
from hy3.checkpoint.forms import BF16
from hy3.checkpoint.json_file import read_json_if_there
from hy3.checkpoint.strict_json import shown
from hy3.errors import InputError

MANIFEST_NAME = "hy3_manifest.json"
SCHEMA = "hy3.manifest/2"
_HINT = "the manifest is damaged: quantize again into an empty folder"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Parameters:
    """What decides the bytes of an output, normalised: "auto" never stands here."""

    recipe: str
    scales: str  # "max", "four-over-six" or "exact"
    mtp: str  # "same" or "bf16"
    hy3_version: str
    format: str  # how files name the parts of a weight: "compressed-tensors" or "modelopt"
    fp8_activations: str  # "none" or "dynamic"
    lm_head: str  # "bf16" or "fp8"
    rules: str  # of the recipe, as hy3.quantize.recipe encodes them
    nonfinite: str = ""  # tensors with NaN or infinity that were kept, joined by commas

    @property
    def nonfinite_names(self) -> frozenset[str]:
        """The tensors that were kept although they hold NaN or infinity."""
        return frozenset(filter(None, self.nonfinite.split(",")))


@dataclass(frozen=True)
class Origin:
    """Where a source was published."""

    repository: str  # org/name on a hub
    revision: str  # the commit


@dataclass(frozen=True)
class Manifest:
    """Parameters, and every file of the source and of the output by its name."""

    parameters: Parameters
    source: dict[str, FileHash]
    outputs: dict[str, FileHash]  # all files of the output but the manifest itself
    origin: Origin | None = None  # None for a folder: nothing in it can be trusted to say
    source_scheme: str = BF16  # else the source was quantized itself, and this is how

    def encode(self) -> bytes:
        """The file's bytes: sorted, so that equal manifests are equal files."""
        value = {
            "schema": SCHEMA,
            "parameters": dict(vars(self.parameters)),
            **({"origin": vars(self.origin)} if self.origin else {}),
            **({"source_scheme": self.source_scheme} if self.source_scheme != BF16 else {}),
            "source": _encode_files(self.source),
            "outputs": _encode_files(self.outputs),
        }
        return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of ``folder``, None when it has none; InputError when it is unsound."""
    path = folder / MANIFEST_NAME
    value = read_json_if_there(path, _HINT)
    if value is None:
        return None
    if value.get("schema") != SCHEMA:
        raise _fault(path, f"schema is {shown(value.get('schema'))}, not {SCHEMA!r}")
    fields = value.get("parameters")
    names = set(Parameters.__dataclass_fields__)
    if not isinstance(fields, dict) or set(fields) != names:
        raise _fault(path, f"parameters must be exactly {', '.join(sorted(names))}")
    if not all(isinstance(item, str) for item in fields.values()):
        raise _fault(path, "parameters must be strings")
    return Manifest(
        Parameters(**fields),
        _decode_files(path, "source", value.get("source")),
        _decode_files(path, "outputs", value.get("outputs")),
        _decode_origin(path, value.get("origin")),
        _decode_scheme(path, value.get("source_scheme", BF16)),
    )


def _encode_files(files: dict[str, FileHash]) -> dict[str, Any]:
    return {
        name: {"sha256": each.sha256, "bytes": each.size_bytes}
        for name, each in sorted(files.items())
    }


def _decode_files(path: Path, key: str, value: Any) -> dict[str, FileHash]:
    if not isinstance(value, dict):
        raise _fault(path, f"{key} is not an object")
    files = {}
    for name, item in value.items():
        if not name.isprintable() or set(name) & set("/\\:") or name in ("", ".", ".."):
            raise _fault(path, f"{key} names {shown(name)}, which is not a plain file name")
        known = isinstance(item, dict) and set(item) == {"sha256", "bytes"}
        if not known or not _is_size(item["bytes"]) or not _is_sha256(item["sha256"]):
            raise _fault(path, f"{key} of {shown(name)} must hold exactly sha256 and bytes")
        files[name] = FileHash(item["sha256"], item["bytes"])
    return files


def _decode_origin(path: Path, value: Any) -> Origin | None:
    if value is None:
        return None
    known = isinstance(value, dict) and set(value) == set(Origin.__dataclass_fields__)
    if not known or not all(isinstance(item, str) for item in value.values()):
        raise _fault(path, "origin must hold exactly repository and revision")
    return Origin(**value)


def _decode_scheme(path: Path, value: Any) -> str:
    if not isinstance(value, str):
        raise _fault(path, "source_scheme is not a string")
    return value


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _fault(path: Path, message: str) -> InputError:
    return InputError(message, hint=_HINT, where=str(path))

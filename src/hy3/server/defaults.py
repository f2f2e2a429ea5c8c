"""``SamplingDefaults``: the sampling that a checkpoint recommends for itself."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hy3.checkpoint.json_file import read_json_if_there
from hy3.checkpoint.strict_json import shown
from hy3.engine.request import SamplingParams
from hy3.errors import InputError


@dataclass(frozen=True)
class SamplingDefaults:
    """What ``generation_config.json`` recommends; the values here hold where it is silent."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0


def load_defaults(folder: Path) -> SamplingDefaults:
    """Read the checkpoint's recommendations; a missing file means none."""
    path = folder / "generation_config.json"
    raw = read_json_if_there(path) or {}
    found: dict[str, Any] = {}
    for entry in fields(SamplingDefaults):
        value = raw.get(entry.name)
        if value is None:
            continue
        if type(value) not in (int, float) or abs(value) > sys.float_info.max:
            raise _fault(f"{entry.name} must be a number, found {shown(value)}", path)
        found[entry.name] = int(value) if entry.name == "top_k" else float(value)
    try:  # out of range: fail at the start, not on each request
        SamplingParams(max_tokens=1, **found)
    except InputError as error:
        raise _fault(error.message, path) from error
    return SamplingDefaults(**found)


def _fault(message: str, path: Path) -> InputError:
    return InputError(message, hint="correct it or remove the key", where=str(path))

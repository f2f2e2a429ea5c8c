"""MODEL on the command line: a folder. Names on a hub are recognised in order to say so."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hy3.errors import InputError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def expand_home(path: str | Path) -> Path:
    """The path with a leading ``~`` resolved; one of an unknown user stays as it is."""
    return Path(os.path.expanduser(path))


def model_folder(model: str) -> Path:
    """The folder that MODEL names; InputError for a hub name or something that is no folder."""
    path = expand_home(model)
    if model.startswith("hf://") or (_HUB_NAME.fullmatch(model) and not path.exists()):
        raise InputError(
            "models on a hub are not supported yet",
            hint="download it and name its folder; a folder of that name does not exist here",
            where=model,
        )
    if not path.is_dir():
        kind = "is not a folder" if path.exists() else "does not exist"
        raise InputError(kind, hint="name a folder that holds a checkpoint", where=model)
    return path

"""Which endpoint the client verbs speak to, and with which key."""

from __future__ import annotations

import os
from pathlib import Path

from hy3.errors import InputError

DEFAULT_URL = "http://127.0.0.1:8000/v1"


def read_api_key(path: Path | None) -> str | None:
    """The first key in the file, else the one in HY3_API_KEY, else None."""
    if path is None:
        return os.environ.get("HY3_API_KEY") or None
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read ({type(error).__name__})",
            hint="name a text file that holds the key",
            where=str(path),
        ) from error
    if not lines:
        raise InputError("holds no key", hint="put the key on its first line", where=str(path))
    return lines[0]

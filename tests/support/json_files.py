"""JSON files, changed by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys of a file; None removes one."""
    value = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({key: item for key, item in value.items() if item is not None}))

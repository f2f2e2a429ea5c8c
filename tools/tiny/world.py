"""The words and facts that dialogues are made of, read from world.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WORLD: dict[str, Any] = json.loads(
    Path(__file__).with_name("world.json").read_text(encoding="utf-8")
)

"""How a benchmark script leaves its result: one JSON with hardware, versions, command and date."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hy3.cli.env import gather_environment

ROOT = Path(__file__).resolve().parent.parent
HARDWARE = ("platform", "machine", "processor", "cores", "memory_gib")


def record(
    name: str,
    results: dict[str, Any],
    path: Path | None = None,
    hardware: dict[str, Any] | None = None,
    versions: dict[str, Any] | None = None,
) -> Path:
    """Write ``benchmarks/results/<name>.json`` (or ``path``) and return where it lies.

    ``results`` holds the script's own keys beside the provenance that is added here; ``hardware``
    and ``versions`` are what only the script knows, such as the GPU and its compiler.
    """
    facts = gather_environment()
    document = {
        **provenance(),
        "hardware": {key: facts[key] for key in HARDWARE} | (hardware or {}),
        "versions": {key: value for key, value in facts.items() if key not in HARDWARE}
        | (versions or {}),
        **results,
    }
    path = path or ROOT / "benchmarks" / "results" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def provenance() -> dict[str, str]:
    """What made a result and when; results of several runs carry it in each part."""
    return {
        "command": command(sys.argv),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
    }


def command(arguments: list[str]) -> str:
    """As it is typed in the repository's root; of folders elsewhere only their names."""
    script = Path(arguments[0]).resolve()
    words = [script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name]
    return " ".join(["python", *map(str, words), *map(_without_folder, arguments[1:])])


def _without_folder(argument: str) -> str:
    before, equals, value = argument.rpartition("=")
    path = Path(value)
    return f"{before}{equals}{path.name}" if path.is_absolute() else argument


def commit() -> str:
    """The commit of this source tree, with ``-dirty`` where it was changed."""
    # A machine that got a copy of the tree has no history to ask.
    if named := os.environ.get("HY3_COMMIT"):
        return named
    run = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True,
        text=True,
    )
    return run.stdout.strip() or "unknown"

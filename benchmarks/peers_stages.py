"""Times of the parts of a peer's run, taken inside its own process."""

from __future__ import annotations

import json
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any


class Stages:
    """Wall and processor seconds since the last mark, by name."""

    def __init__(self, packages: list[str]) -> None:
        self._packages = packages
        self._stages: dict[str, dict[str, float]] = {}
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def done(self, name: str) -> None:
        """End of a part; what a GPU still has to do counts to it."""
        if _uses_cuda():
            sys.modules["torch"].cuda.synchronize()
        wall, cpu = time.monotonic(), time.process_time()
        self._stages[name] = {
            "wall_s": round(wall - self._wall, 2),
            "cpu_s": round(cpu - self._cpu, 2),
        }
        self._wall, self._cpu = wall, cpu

    def write(self, path: str) -> None:
        """Leave the parts, the versions and, where a GPU was used, its peak memory as JSON."""
        report: dict[str, Any] = {
            "stages": self._stages,
            "versions": {name: metadata.version(name) for name in self._packages},
        }
        if _uses_cuda():
            report["peak_gpu_bytes"] = sys.modules["torch"].cuda.max_memory_allocated()
        Path(path).write_text(json.dumps(report))


def _uses_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available()) and torch.cuda.is_initialized()

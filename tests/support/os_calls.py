"""Every call by which a run changes OUT, seen at the border to the operating system.

While ``watching``, the functions of ``os`` that open, write, flush, cut, rename or remove files of
a folder pass through a watcher. It may record the call, do it, do half of it, fail or kill.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PHASES = ("plan", "tensor", "fsync", "rename", "record", "index", "config", "manifest", "other")
_SMALL = {
    "model.safetensors.index.json": "index",
    "config.json": "config",
    "hy3_manifest.json": "manifest",
}


@dataclass(frozen=True)
class Call:
    """One call. ``kind``: create, open, write, fsync, cut, rename, unlink or fsync_folder."""

    kind: str
    name: str  # of the file in the folder; empty for the folder itself
    offset: int = 0  # of a write; the new size of a cut
    data: bytes = b""
    target: str = ""  # of a rename


# Takes the call and what does it; returns what the caller gets.
Watcher = Callable[[Call, Callable[[], Any]], Any]


@contextmanager
def watching(folder: Path, watcher: Watcher) -> Generator[None, None, None]:
    """Route all calls that concern ``folder`` through ``watcher``, one at a time."""
    names: dict[int, str] = {}
    lock = threading.RLock()
    real = {
        name: getattr(os, name)
        for name in ("open", "close", "pwrite", "fsync", "ftruncate", "rename", "unlink")
    }

    def inside(path: Any) -> str | None:
        """The file's name if it lies in the folder."""
        if isinstance(path, int):
            return names.get(path)
        path = Path(os.fspath(path))
        if path == folder:
            return ""
        return path.name if path.parent == folder else None

    def see(call: Call, function: str, *arguments: Any) -> Any:
        with lock:
            return watcher(call, lambda: real[function](*arguments))

    def open_(path: Any, flags: int, *rest: Any) -> int:
        name = inside(path)
        if name is None:
            return int(real["open"](path, flags, *rest))
        new = flags & os.O_CREAT and not Path(path).exists()
        kind = "create" if new else "open"
        descriptor = int(see(Call(kind, name), "open", path, flags, *rest))
        if flags & os.O_TRUNC and not new:
            see(Call("cut", name), "ftruncate", descriptor, 0)
        names[descriptor] = name
        return descriptor

    def close(descriptor: int) -> None:
        names.pop(descriptor, None)
        real["close"](descriptor)

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        name = inside(descriptor)
        if name is None:
            return int(real["pwrite"](descriptor, data, offset))
        call = Call("write", name, offset, bytes(data))
        return int(see(call, "pwrite", descriptor, data, offset))

    def fsync(descriptor: int) -> None:
        name = inside(descriptor)
        if name is None:
            return real["fsync"](descriptor)
        see(Call("fsync" if name else "fsync_folder", name), "fsync", descriptor)

    def ftruncate(descriptor: int, size: int) -> None:
        name = inside(descriptor)
        if name is None:
            return real["ftruncate"](descriptor, size)
        see(Call("cut", name, size), "ftruncate", descriptor, size)

    def rename(source: Any, target: Any, **options: Any) -> None:
        name = inside(source)
        if name is None:
            return real["rename"](source, target, **options)
        see(Call("rename", name, target=str(inside(target))), "rename", source, target)

    def unlink(path: Any, **options: Any) -> None:
        name = inside(path)
        if name is None or not Path(path).exists():
            return real["unlink"](path, **options)
        see(Call("unlink", name), "unlink", path)

    replacements = {
        "open": open_, "close": close, "pwrite": pwrite, "fsync": fsync,
        "ftruncate": ftruncate, "rename": rename, "unlink": unlink,
    }  # fmt: skip
    try:
        for name, replacement in replacements.items():
            setattr(os, name, replacement)
        yield
    finally:
        for name, function in real.items():
            setattr(os, name, function)


class Phases:
    """Names the phase of each call of one run, in their order."""

    def __init__(self) -> None:
        self._begun = False  # with the shards
        self._last: dict[int, str] = {}  # thread -> phase of its last call

    def of(self, call: Call) -> str:
        """One of PHASES; what concerns the folder belongs to the same thread's call before it."""
        name, thread = call.name.removesuffix(".tmp"), threading.get_ident()
        phase = self._last.get(thread, "plan")
        if name in _SMALL:
            phase = _SMALL[name]
        elif name.endswith((".safetensors", ".journal")):
            phase = call.kind if call.kind in ("fsync", "rename") else "tensor"
            self._begun = True
        elif name == "hy3_resume.json":
            phase = "record" if self._begun else "plan"
        elif name and name != ".hy3_lock":
            phase = "other"
        self._last[thread] = phase
        return phase

"""Applications for server tests: over a backend that plays a script, and over the real engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hy3.deploy.native import NativeBackend
from hy3.deploy.native_plan import NativeOptions
from hy3.server.app import create_app
from hy3.server.backend import Backend
from hy3.server.keys import ApiKeys
from hy3.server.limits import Limits
from hy3.server.served import ServedModel, load_served_model
from support.live_server import live_server
from support.scripted import make_random


@cache
def random_folder() -> Path:
    """A random checkpoint for tests that need a tokenizer and a template only."""
    return make_random(Path(mkdtemp(prefix="hy3-served-")) / "random")


@dataclass(frozen=True)
class Live:
    """A server that runs: where, over what."""

    url: str
    backend: Any
    served: ServedModel


@contextmanager
def serve(
    backend: Backend,
    folder: Path | None = None,
    limits: Limits = Limits(),
    keys: tuple[str, ...] = (),
    name: str = "m",
    ready: bool = True,
) -> Iterator[Live]:
    """Serve on a free port over any backend; ``ready`` False does not wait for it."""
    served = load_served_model(folder or random_folder(), name)
    app = create_app(backend, served, limits, ApiKeys(keys))
    with live_server(app, backend, ready) as url:
        yield Live(url, backend, served)


@contextmanager
def serve_native(
    folder: Path,
    options: NativeOptions = NativeOptions(),
    limits: Limits = Limits(),
    name: str = "m",
) -> Iterator[Live]:
    """Serve a checkpoint with the real engine."""
    with serve(NativeBackend(folder, options), folder, limits, name=name) as live:
        yield live

"""Runs of the quantizer for tests: in this process, or in a child that is killed."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hy3.quantize.pipeline as pipeline
from hy3.quantize.pipeline import Outcome, quantize
from hy3.quantize.plan import Plan, plan_source
from hy3.quantize.progress import Meter
from hy3.quantize.recipe import load_recipe
from hy3.quantize.source import local_source
from hy3.quantize.stats import StatsByKey


@contextmanager
def no_progress(label: str, total_bytes: int) -> Iterator[Meter]:
    yield lambda *_: None


def plan_of(source: Path, scales: str = "exact", mtp: str = "same", decodes: bool = False) -> Plan:
    return plan_source(
        local_source(source), load_recipe("experts-nvfp4"), scales, mtp, decodes=decodes
    )


def run(
    source: Path,
    out: Path,
    scales: str = "exact",
    mtp: str = "same",
    workers: int = 2,
    decodes: bool = False,
) -> Outcome:
    return quantize(plan_of(source, scales, mtp, decodes), out, workers, no_progress)


def tree(folder: Path) -> dict[str, str]:
    """File name -> SHA-256, hidden files too."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def run_in_child(
    source: Path, out: Path, prepare: Callable[[], None], workers: int = 2, decodes: bool = False
) -> int:
    """Fork, call ``prepare`` in the child, quantize there; returns the wait status.

    The child exits with 0, or with 9 after an exception.
    """
    child = os.fork()
    if child == 0:
        code = 9
        try:
            prepare()
            run(source, out, workers=workers, decodes=decodes)
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def kill_after(seconds: float) -> Callable[[], None]:
    """For ``run_in_child``: SIGKILL after some time, wherever the work then is."""

    def prepare() -> None:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, seconds)

    return prepare


@contextmanager
def drawn_once() -> Iterator[None]:
    """Draw the card's pictures once for equal statistics: most of a small run's time is theirs."""
    real = pipeline.draw_pictures
    known: dict[object, dict[str, bytes]] = {}

    def draw(stats: StatsByKey, rule: str) -> dict[str, bytes]:
        key = (tuple(stats.items()), rule)
        if key not in known:
            known[key] = real(stats, rule)
        return known[key]

    pipeline.draw_pictures = draw
    try:
        yield
    finally:
        pipeline.draw_pictures = real

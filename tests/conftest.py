"""Puts ``tests/`` and the repository root on the path: tests import ``support`` and ``tools``.

Torch gets one thread. The models of the tests are small: a second thread gains nothing, and on a
machine with other work it waits for its core at every operation.

A shell starts what runs in its background deaf to SIGINT, and children inherit that: here
they hear it again, as tests send it to them.

The fixtures import what they need when they are asked for: tests/peers runs where no more than
vLLM is installed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported

signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS), str(TESTS.parent)]


@pytest.fixture(scope="module")
def pictures_once() -> Iterator[None]:
    """For modules of many small runs."""
    from support.quantizing import drawn_once

    with drawn_once():
        yield


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a run that nothing disturbs makes of the module's ``source``."""
    from support.quantizing import run, tree

    out = tmp_path_factory.mktemp("expected") / "out"
    run(source, out)
    return tree(out)

"""Puts ``tests/`` and the repository root on the path: tests import ``support`` and ``tools``.

Torch gets one thread. The models of the tests are small: a second thread gains nothing, and on a
machine with other work it waits for its core at every operation.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

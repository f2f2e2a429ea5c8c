"""Puts ``tests/`` and the repository root on the path: tests import ``support`` and ``tools``."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

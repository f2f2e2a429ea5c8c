"""The compiled kernels' folder follows every kernel source."""

from __future__ import annotations

from pathlib import Path

import numba

import hy3.kernels
from hy3.kernels.jit_cache import sources_digest


def test_digest_follows_names_and_contents(tmp_path):
    (tmp_path / "a.py").write_text("one")
    (tmp_path / "b.py").write_text("two")
    first = sources_digest(tmp_path)
    (tmp_path / "notes.txt").write_text("ignored")
    assert sources_digest(tmp_path) == first
    (tmp_path / "b.py").write_text("tow")
    second = sources_digest(tmp_path)
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    assert len({first, second, sources_digest(tmp_path)}) == 3


def test_numba_is_pointed_at_this_version():
    folder = Path(hy3.kernels.__file__).parent
    assert Path(numba.config.CACHE_DIR).name == f"hy3-{sources_digest(folder)}"

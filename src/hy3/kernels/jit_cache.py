"""Where compiled kernels are kept between starts.

Numba drops a cached kernel when the kernel's own file changes, but not when a file does that it
calls into. So the cache folder carries a digest of every kernel source: kernels of two versions
never meet.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numba


def sources_digest(folder: Path) -> str:
    """Sixteen hex digits over names and contents of the Python files in ``folder``."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def use_versioned_cache() -> None:
    """Point numba at this version's folder; call before the first kernel is declared.

    A folder set by NUMBA_CACHE_DIR stays the parent. Where the package cannot be written to,
    numba's own choice (the user's cache) stands.
    """
    package = Path(__file__).parent
    parent = Path(numba.config.CACHE_DIR or package / "__pycache__")
    if numba.config.CACHE_DIR or os.access(package, os.W_OK):
        numba.config.CACHE_DIR = str(parent / f"hy3-{sources_digest(package)}")

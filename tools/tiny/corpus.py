"""Plain text that the licence lets us train on, cut into paragraphs and split by hash.

Sources, each given as a folder or file unpacked beforehand (see the model card):
Python's documentation and standard library (PSF), the Jargon File (public domain), The Devil's
Dictionary (public domain), and the plays of Shakespeare (public domain).
"""

from __future__ import annotations

import gzip
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tools.tiny.split import split_of

PIECE_CHARACTERS = 1500


def read_sources(folder: Path) -> dict[str, str]:
    """Source name -> its whole text; ``folder`` holds the unpacked packages."""
    library = Path(sysconfig.get_paths()["stdlib"])
    modules = sorted(library.glob("*.py")) + sorted(library.glob("[a-km-z]*/*.py"))
    packages = ("site-packages", "test", "idlelib", "ensurepip", "dist-packages")
    return {
        "python-doc": _join(sorted(folder.rglob("*.rst.txt"))),
        "python-stdlib": _join([m for m in modules if not m.parent.name.startswith(packages)]),
        "jargon": _unzip(next(folder.rglob("jargon.txt.gz"))),
        "devil": _unzip(next(folder.rglob("devil.dict.dz"))),
        "shakespeare": _join([next(folder.rglob("shakespeare.txt"))]),
    }


def _join(paths: list[Path]) -> str:
    return "\n\n".join(path.read_text(encoding="utf-8", errors="ignore") for path in paths)


def _unzip(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode("utf-8", errors="ignore")


def pieces(text: str) -> Iterator[str]:
    """Whole paragraphs of about ``PIECE_CHARACTERS`` together."""
    piece = ""
    for paragraph in re.split(r"\n\s*\n", text):
        piece += paragraph.rstrip() + "\n\n"
        if len(piece) >= PIECE_CHARACTERS:
            yield piece.strip("\n")
            piece = ""
    if piece.strip():
        yield piece.strip("\n")


def split_pieces(text: str, split: str, limit_characters: int, seed: int = 0) -> list[str]:
    """Pieces of one set in random order, up to about ``limit_characters``."""
    chosen = [piece for piece in dict.fromkeys(pieces(text)) if split_of(f"text {piece}") == split]
    random.Random(seed).shuffle(chosen)
    kept, total = [], 0
    for piece in chosen:
        if total >= limit_characters:
            break
        kept.append(piece)
        total += len(piece)
    return kept

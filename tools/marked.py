"""Parts of a page that are written by a tool: between two marks, and checked by ``--check``."""

from __future__ import annotations

import sys
from pathlib import Path


def written(text: str, parts: dict[str, str]) -> str:
    """``text`` with each part between the marks ``<!-- NAME: begin -->`` and its end."""
    for name, part in parts.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        assert found and closed, f"the page has no marks {name!r}"
        text = f"{before}{begin}\n{part}\n{end}{after}"
    return text


def rewrite(path: Path, parts: dict[str, str]) -> int:
    """Write the parts into the page, or with ``--check`` only say by 1 that it has others."""
    text = path.read_text(encoding="utf-8")
    new = written(text, parts)
    if "--check" in sys.argv[1:]:
        return int(new != text)
    path.write_text(new, encoding="utf-8")
    return 0

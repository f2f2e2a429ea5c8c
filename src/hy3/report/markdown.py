"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without a line at its end; a ``|`` within a cell is escaped."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )

"""What a verb prints: people's text on stderr or stdout, data as one JSON object on stdout.

With ``--json`` stdout carries exactly one JSON object, in ASCII because names of files need not be
text, and everything else goes to stderr; with ``--quiet`` only results and errors are printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from hy3.cli.progress import byte_progress
from hy3.errors import Hy3Error

if TYPE_CHECKING:
    from hy3.quantize.progress import Meter

_LONGEST_WORD = 32  # of a table, that is kept whole in a narrow terminal
_SHOWN_NAMES = 10


class Output:
    """The one way verbs speak; made once per command from its flags."""

    def __init__(self, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet

    def status(self, text: str) -> None:
        """A line about progress or context; never data."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def warning(self, text: str) -> None:
        """A line that begins with ``warning:``; shown even when quiet."""
        print(f"warning: {text}", file=sys.stderr, flush=True)

    def progress(self, label: str, total_bytes: int) -> AbstractContextManager[Meter]:
        """A context that yields ``advance(bytes, stats)``; total 0 means unknown. Never data."""
        return byte_progress(label, total_bytes, self.quiet)

    def text(self, text: str) -> None:
        """Readable result text on stdout; suppressed under ``--json``."""
        if not self.as_json:
            print(text, flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
        """A readable table on stdout; suppressed under ``--json``. Cells are plain text."""
        if self.as_json:
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title or None, title_justify="left", header_style="bold")
        for number, column in enumerate(columns):
            # A word that is cut is lost: ids and numbers keep their width, sentences wrap.
            cells = [column, *(row[number] for row in rows)]
            word = max((len(word) for cell in cells for word in cell.split()), default=1)
            table.add_column(column, overflow="fold", min_width=min(word, _LONGEST_WORD))
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        width = None if sys.stdout.isatty() else 120
        Console(width=width).print(table)

    def names(self, title: str, names: Sequence[str]) -> None:
        """A title and the first names under it; suppressed under ``--json``, which has all."""
        self.text(title)
        for name in names[:_SHOWN_NAMES]:
            self.text(f"  {name}")
        if len(names) > _SHOWN_NAMES:
            self.text(f"  and {len(names) - _SHOWN_NAMES} more; --json lists all")

    def result(self, verb: str, data: dict[str, Any]) -> None:
        """The machine-readable result, printed only under ``--json``; the schema key is added."""
        if self.as_json:
            print(json.dumps({"schema": f"hy3.{verb}/1", **data}), flush=True)


def print_error(error: Hy3Error, as_json: bool) -> None:
    """Two lines on stderr; under ``--json`` also the error object on stdout."""
    # If stderr cannot be written either there is nobody to tell: the exit code says it alone.
    with suppress(OSError):
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps(error.as_json()), flush=True)

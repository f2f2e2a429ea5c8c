"""Where ``hy3`` begins: what Ctrl-C does before the command can say anything about it.

Importing the verbs takes a fifth of a second, and an interrupt within would be a traceback.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130  # what a shell makes of SIGINT


def main() -> None:
    """Import the command line and run it; an interrupt during the import ends in silence."""
    before = signal.getsignal(signal.SIGINT)
    # A shell's background jobs ignore SIGINT, and go on doing so.
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from hy3.cli.app import main as run

    signal.signal(signal.SIGINT, before)
    run()


def _end(number: int, frame: FrameType | None) -> None:
    """At once: an exception would pass through imports, some of which take it for their own."""
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()

"""How many cores this process may use; a container or ``taskset`` can leave fewer than exist."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """At least one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

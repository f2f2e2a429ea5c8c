"""How long work reports the bytes it has done; who shows them is its caller's business."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

# Takes the bytes done since its last call, from any thread.
Advance = Callable[[int], None]
# progress(label, total bytes) gives a context whose value is to be told of them.
Progress = Callable[[str, int], AbstractContextManager[Advance]]

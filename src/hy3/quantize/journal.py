"""``Journal``: which tensors of a shard under way are finished, and what quantizing did to them.

It lies beside the partial file and gets one line for each finished tensor. Neither is flushed for
that: a line holds the digests of all bytes up to its tensor's end, so that a rerun can tell how
much of the partial file is sound, whatever a crash or a power cut has left of the two.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hy3.checkpoint.json_file import open_regular
from hy3.errors import EnvironmentFault
from hy3.quantize.resume import decode_count, decode_stats
from hy3.quantize.stats import WeightStats

JOURNAL_SUFFIX = ".journal"


@dataclass(frozen=True)
class FinishedTensor:
    """One line; tensors are finished in the plan's order, so it needs no name."""

    source_sha256: str  # of the source's shard up to the tensor's end
    output_sha256: str  # of the partial file up to the end of what was made of it
    largest: float | None  # its largest magnitude, None when it was copied
    stats: WeightStats | None
    rounded: int = 0  # values of a quantized source that BF16 could not hold

    def encode(self) -> bytes:
        """The line, a CRC-32 before its text; floats keep every bit."""
        stats = None if self.stats is None else vars(self.stats)
        fields = [self.source_sha256, self.output_sha256, self.largest, stats, self.rounded]
        text = json.dumps(fields).encode()
        return b"%08x %s\n" % (zlib.crc32(text), text)


def journal_path(shard: Path) -> Path:
    """The journal beside a shard of the output."""
    return shard.with_name(shard.name + JOURNAL_SUFFIX)


class Journal:
    """The journal of one shard while this process works on it."""

    def __init__(self, path: Path) -> None:
        """Open it, or start it; ``found`` are the sound lines of an earlier run."""
        self.path = path
        self.found: deque[FinishedTensor] = deque()
        self._end = 0  # of the lines that hold
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            with open_regular(path) as file:
                lines = file.readlines()
        except OSError as error:
            raise self._fault(error) from error
        self._leftover = bool(lines)
        for finished in map(_decode, lines):
            if finished is None:
                break
            self.found.append(finished)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def confirm(self) -> None:
        """The first line that was found holds."""
        self._end += len(self.found.popleft().encode())

    def append(self, finished: FinishedTensor) -> None:
        """Add a line after those that hold; whatever else was found goes."""
        line = finished.encode()
        try:
            if self._leftover:
                self.found.clear()
                os.ftruncate(self._descriptor, self._end)
                self._leftover = False
            written = os.pwrite(self._descriptor, line, self._end)
        except OSError as error:
            raise self._fault(error) from error
        # After a line that was cut short nothing can hold; the next one goes over it.
        self._end += written if written == len(line) else 0

    def _fault(self, error: OSError) -> EnvironmentFault:
        return EnvironmentFault(
            f"cannot be written ({error.strerror})",
            hint="check free space and permissions; what is finished is kept",
            where=str(self.path),
        )


def _decode(line: bytes) -> FinishedTensor | None:
    """What a whole and undamaged line says, None for any other."""
    check, _, text = line.rstrip(b"\n").partition(b" ")
    if b"%08x" % zlib.crc32(text) != check:
        return None
    try:
        source_sha256, output_sha256, largest, stats, rounded = json.loads(text)
        stats = None if stats is None else decode_stats(stats)
        finished = FinishedTensor(
            source_sha256, output_sha256, largest, stats, decode_count(rounded)
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None  # of another version
    return finished if finished.encode() == line else None

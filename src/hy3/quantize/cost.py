"""What ``requantize`` cost: another maker's checkpoint, and ours made from it, beside the original.

Making it is ``quantize`` with a plan that decodes. What the file lost by the way, before and
now, can only be said against the BF16 original.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hy3.quantize.progress import Progress
from hy3.quantize.verdict import ClassError
from hy3.quantize.verify import bytes_to_read, verify


@dataclass(frozen=True)
class Cost:
    """Errors of one class against the original: of the file as it came, and of what was made."""

    name: str
    before: ClassError | None  # None for a class that is the original's, bit for bit
    after: ClassError | None


def compare_costs(folder: Path, out: Path, original: Path, progress: Progress) -> tuple[Cost, ...]:
    """By class; ``folder`` is the file as it came, ``out`` what was made from it."""
    errors = []
    for label, each in (("compare what came", folder), ("compare what was made", out)):
        with progress(label, bytes_to_read(each, original)) as advance:
            errors.append(verify(each, original, advance).error_by_class)
    before, after = errors
    names = sorted(before.keys() | after.keys())
    return tuple(Cost(name, before.get(name), after.get(name)) for name in names)

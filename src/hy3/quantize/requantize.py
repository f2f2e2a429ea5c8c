"""``requantize``: another maker's quantized checkpoint in a recipe of ours, and what that costs.

The file is decoded to BF16 beside OUT, quantized anew, so that gate and up of an expert share their
tensor scale and every group has its best code, and the decoded form is removed. What it lost by
the way can only be said against the BF16 original.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hy3.quantize.dequantize import dequantize, plan_twin
from hy3.quantize.output_folder import make_folder
from hy3.quantize.pipeline import quantize
from hy3.quantize.plan import make_plan
from hy3.quantize.progress import Progress
from hy3.quantize.recipe import Recipe
from hy3.quantize.verdict import ClassError
from hy3.quantize.verify import bytes_to_read, verify


@dataclass(frozen=True)
class Cost:
    """Errors of one class against the original: of the file as it came, and of what was made."""

    name: str
    before: ClassError | None  # None for a class that the file kept in BF16
    after: ClassError | None


@dataclass(frozen=True)
class Requantized:
    """What was done."""

    weights: int  # decoded
    rounded_values: int  # that BF16 could not hold
    costs: tuple[Cost, ...]  # empty without an original


def requantize(
    folder: Path,
    out: Path,
    original: Path | None,
    recipe: Recipe,
    scales: str,
    workers: int,
    progress: Progress,
) -> Requantized:
    """Decode ``folder``, quantize it into ``out`` and compare both with ``original``.

    Nothing is resumed: a run that was stopped begins anew, into an empty folder.

    Raises:
        InputError: the file is not whole, or OUT is not empty.
    """
    plan = plan_twin(folder)
    make_folder(out.parent)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.decoded-", dir=out.parent))
    try:
        twin = dequantize(plan, work / folder.resolve().name, workers, progress)
        made = make_plan(work / folder.resolve().name, recipe, scales, "same")
        quantize(made, out, workers, progress)
    finally:
        shutil.rmtree(work)
    costs = () if original is None else _compare(folder, out, original, progress)
    return Requantized(twin.weights, twin.rounded_values, costs)


def _compare(folder: Path, out: Path, original: Path, progress: Progress) -> tuple[Cost, ...]:
    errors = []
    for label, each in (("compare what came", folder), ("compare what was made", out)):
        with progress(label, bytes_to_read(each, original)) as advance:
            errors.append(verify(each, original, advance).error_by_class)
    before, after = errors
    names = sorted(before.keys() | after.keys())
    return tuple(Cost(name, before.get(name), after.get(name)) for name in names)

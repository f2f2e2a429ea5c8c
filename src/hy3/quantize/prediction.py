"""``Prediction``: how long a plan takes on this machine and what room it needs, measured briefly.

Three things go on at once in a run: reading the source, computing (encoding, checking, hashing),
writing and syncing the output. The slowest of them is the time to expect; their sum is
what a run takes if none overlaps another.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hy3.checkpoint.forms import BF16
from hy3.errors import EnvironmentFault
from hy3.hardware.disk import has_holes, read_rate, write_and_read_rate
from hy3.hardware.rate import Rate, rate_of
from hy3.kernels.scale_search import largest_magnitude
from hy3.kernels.scale_search_device import CPU, Device
from hy3.quantize.encode import encode
from hy3.quantize.plan import Plan, Step
from hy3.quantize.recipe import COPY
from hy3.quantize.resume import read_resume_state
from hy3.stored.decode import decode_parts
from hy3.units import format_bytes

_COMPUTE_SECONDS = 0.9  # for all formats together
_SAMPLE_BYTES = 8 * 2**20
_WRITE_BYTES = 256 * 2**20
_LEAST_FREE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Term:
    """Bytes, and how long they take alone at a measured rate."""

    name: str  # what is read, computed or written
    nbytes: int
    seconds: float
    cpu_seconds: float  # of all threads

    @property
    def bytes_per_s(self) -> float:
        """The rate; zero when there is nothing to do."""
        return self.nbytes / self.seconds if self.nbytes else 0.0


@dataclass(frozen=True)
class Prediction:
    """Of the shards that are still to be made."""

    workers: int
    read: Term
    read_from: str  # "SRC", or "OUT" when nothing of SRC can be measured
    compute: tuple[Term, ...]  # by format, "copy" among them; "fp8 to nvfp4" decodes first
    write: Term
    free_bytes: int

    @property
    def disk_work_seconds(self) -> float:
        """Of the computing: the processor time of reading and writing, over all threads."""
        return (self.read.cpu_seconds + self.write.cpu_seconds) / self.workers

    @property
    def seconds_by_activity(self) -> dict[str, float]:
        """Each alone; reading and writing take their processor time from the computing."""
        compute = sum(term.seconds for term in self.compute) + self.disk_work_seconds
        return {"read": self.read.seconds, "compute": compute, "write": self.write.seconds}

    @property
    def bound_by(self) -> str:
        """The slowest activity."""
        return max(self.seconds_by_activity, key=self.seconds_by_activity.__getitem__)

    @property
    def overlapped_seconds(self) -> float:
        """All at once: the time to expect."""
        return max(self.seconds_by_activity.values())

    @property
    def serial_seconds(self) -> float:
        """One after the other; longer still where the machine is slower than it was measured."""
        return sum(self.seconds_by_activity.values())

    @property
    def cpu_seconds(self) -> float:
        """Of all threads; other work on the machine disturbs this figure least."""
        return sum(term.cpu_seconds for _, term in self.terms())

    @property
    def fits(self) -> bool:
        """Whether there is room for the output."""
        return self.write.nbytes <= self.free_bytes

    def terms(self) -> list[tuple[str, Term]]:
        """(activity, term), in the order of a weight's way."""
        return [
            ("read", self.read),
            *(("compute", term) for term in self.compute),
            ("write", self.write),
        ]

    def as_json(self) -> dict[str, Any]:
        """Terms and conclusions."""
        return {
            "workers": self.workers,
            "terms": [
                {"activity": activity, **vars(term), "bytes_per_s": term.bytes_per_s}
                for activity, term in self.terms()
            ],
            "read_from": self.read_from,
            "seconds_by_activity": self.seconds_by_activity,
            "bound_by": self.bound_by,
            "overlapped_seconds": self.overlapped_seconds,
            "serial_seconds": self.serial_seconds,
            "cpu_seconds": self.cpu_seconds,
            "needed_bytes": self.write.nbytes,
            "free_bytes": self.free_bytes,
        }


def predict(plan: Plan, out: Path, workers: int, device: Device = CPU) -> Prediction:
    """Measure this machine for some seconds; OUT is not made, and nothing stays on its disk.

    Args:
        workers: threads that the run would use
        device: where it would search scales

    Raises:
        EnvironmentFault: where OUT is to be cannot be written to
        InputError: OUT's state of an earlier run, or the source, cannot be read
    """
    pending = _pending_steps(plan, out)
    folder = next(path for path in (out, *out.absolute().parents) if path.is_dir())
    free_bytes = shutil.disk_usage(folder).free
    written, read_back = _probe_output(folder, free_bytes)
    paths = [header.path for header in plan.checkpoint.headers.values()]
    solid = [path for path in paths if path.exists() and not has_holes(path)]
    read = read_rate(solid, workers) if solid else read_back
    return Prediction(
        workers=workers,
        read=_term("source", sum(step.source.nbytes for step in pending), read),
        read_from="SRC" if solid else "OUT",
        compute=tuple(_compute_terms(pending, workers, plan.parameters.scales, device)),
        write=_term("output", sum(step.output_bytes for step in pending), written),
        free_bytes=free_bytes,
    )


def _probe_output(folder: Path, free_bytes: int) -> tuple[Rate, Rate]:
    """Rates of writing where OUT is to be and of reading back."""
    if free_bytes < _LEAST_FREE_BYTES:
        raise EnvironmentFault(
            f"has {format_bytes(free_bytes)} free",
            hint="free some space or name a folder on another disk",
            where=str(folder),
        )
    try:
        return write_and_read_rate(folder, min(_WRITE_BYTES, free_bytes // 4))
    except OSError as error:
        raise EnvironmentFault(
            f"cannot be used ({error.strerror})",
            hint="name a folder that can be written to",
            where=str(folder),
        ) from error


def _term(name: str, nbytes: int, rate: Rate) -> Term:
    return Term(name, nbytes, nbytes / rate.bytes_per_s, nbytes * rate.cpu_seconds / rate.nbytes)


def _pending_steps(plan: Plan, out: Path) -> list[Step]:
    state = read_resume_state(out)
    finished = state.shards if state else {}
    return [step for name, steps in plan.shards.items() if name not in finished for step in steps]


def _compute_terms(steps: list[Step], workers: int, scales: str, device: Device) -> Iterator[Term]:
    """What each format's bytes in BF16 cost, on weights of its most frequent shape."""
    groups: dict[tuple[str, str], list[Step]] = {}
    for step in steps:
        if step.outputs:
            stored = step.stored.form if step.stored else ""
            groups.setdefault((stored, step.form), []).append(step)
    for (stored, form), chosen in sorted(groups.items()):
        shape = Counter(step.weight.shape for step in chosen).most_common(1)[0][0]
        work = partial(_work, stored, form, _sample(shape), scales, device)
        next(work())  # loads the kernel
        rate = rate_of(work, workers, _COMPUTE_SECONDS / len(groups))
        name = f"{stored} to {BF16 if form == COPY else form}" if stored else form
        yield _term(name, sum(step.weight.nbytes for step in chosen), rate)


def _sample(shape: tuple[int, ...]) -> NDArray[np.uint16]:
    """Patterns of normally distributed BF16 weights: whole rows of the shape, not too many."""
    columns = shape[-1]
    rows = min(int(np.prod(shape[:-1], dtype=np.int64)), max(_SAMPLE_BYTES // (2 * columns), 1))
    values = np.random.default_rng(0).standard_normal((rows, columns), np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def _work(
    stored: str, form: str, bits: NDArray[np.uint16], scales: str, device: Device
) -> Iterator[int]:
    """All that a worker does with a weight between reading and writing it, without end.

    A weight that is ``stored`` in some form is decoded first.
    """
    source, output = hashlib.sha256(), hashlib.sha256()
    read = encode(stored, bits, largest_magnitude(bits), "max").tensors if stored else (bits,)
    while True:
        for data in read:
            source.update(data.data)
        if stored:
            bits, _ = decode_parts(stored, read)
        largest = largest_magnitude(bits)
        encoded = (bits,) if form == COPY else encode(form, bits, largest, scales, device).tensors
        for data in encoded:
            output.update(data.data)
        yield bits.nbytes

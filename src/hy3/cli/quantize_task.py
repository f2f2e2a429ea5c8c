"""``Task``: a plan, where it goes and with what; ``quantize`` and ``requantize`` tell it alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hy3.cli.output import Output

if TYPE_CHECKING:
    from hy3.kernels.scale_search_device import Device
    from hy3.quantize.plan import Plan
    from hy3.quantize.prediction import Prediction
    from hy3.quantize.stats import StatsByKey


@dataclass(frozen=True)
class Task:
    """What a run does, before it is done."""

    output: Output
    plan: Plan
    out: Path
    threads: int
    device: Device

    def describe(self, stats: StatsByKey, dry_run: bool) -> dict[str, Any]:
        """What every kind of run reports."""
        from hy3.quantize.summary import class_rows

        plan = self.plan
        folder = plan.checkpoint.folder.resolve().name
        return {
            "source": plan.origin.repository if plan.origin else folder,
            "parameters": vars(plan.parameters),
            "source_bytes": plan.source_bytes,
            "output_bytes": plan.output_bytes,
            "shards": len(plan.shards),
            "classes": [row.as_json() for row in class_rows(plan, stats)],
            "out": self.out.resolve().name,
            "dry_run": dry_run,
            "device": vars(self.device),
        }

    def announce(self) -> None:
        """Where scales are searched, and why there; or that none are."""
        where = f"on {self.device.name} ({self.device.reason})"
        if not self.plan.has_nvfp4:
            self.output.text("no scales are searched: nothing becomes NVFP4")
        elif self.plan.parameters.scales == "max":
            self.output.text(f"scales follow rule max, without a search, {where}")
        else:
            self.output.text(f"scales are searched {where}")

    def print_table(self, stats: StatsByKey) -> None:
        """What becomes what, with its errors where they are known."""
        from hy3.quantize.summary import summary_table
        from hy3.units import format_bytes

        self.output.table(*summary_table(self.plan, stats))
        before, after = format_bytes(self.plan.source_bytes), format_bytes(self.plan.output_bytes)
        self.output.text(f"{before} become {after} in {len(self.plan.shards)} shards")

    def dry_run(self) -> dict[str, Any]:
        """Print the plan and measure what it takes; the result, with its ``prediction``."""
        from hy3.quantize.pipeline import worker_limit
        from hy3.quantize.prediction import predict

        self.announce()
        self.print_table({})
        self.output.status("measuring the disks and the encoder for some seconds")
        workers = worker_limit(self.plan, self.threads)
        found = predict(self.plan, self.out, workers, self.device)
        _print_prediction(self.output, found)
        return self.describe({}, True) | {"prediction": found.as_json()}


def _print_prediction(output: Output, found: Prediction) -> None:
    """The rows of an activity add up to its time, and all of them to that without overlap."""
    from hy3.units import format_bytes, format_seconds

    rows = [
        (
            f"{activity} {term.name}",
            format_bytes(term.nbytes),
            f"{format_bytes(round(term.bytes_per_s))}/s",
            format_seconds(term.seconds),
        )
        for activity, term in found.terms()
    ]
    beside = format_seconds(found.disk_work_seconds)
    rows.insert(-1, ("compute for reading and writing", "", "", beside))
    output.table(("on this machine", "bytes", "rate", "alone takes"), rows)
    if found.read_from == "OUT":
        output.text("SRC cannot be measured (holes, or not here): read at the rate of OUT's disk")
    output.text(
        f"about {format_seconds(found.overlapped_seconds)} on {found.workers} threads: reading, "
        f"computing and writing overlap, and {found.bound_by} takes longest; "
        f"{format_seconds(found.serial_seconds)} (all rows) if nothing overlapped; "
        f"{format_seconds(found.cpu_seconds)} of processor time"
    )
    needed, free = format_bytes(found.write.nbytes), format_bytes(found.free_bytes)
    output.text(f"OUT needs {needed}; its disk has {free} free")
    if not found.fits:
        output.warning(f"OUT does not fit: it needs {needed} and has {free}")

"""``hy3 quantize``: BF16 in, NVFP4 and FP8 out; a rerun goes on where it stopped."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hy3.cli.choices import check_choice
from hy3.cli.output import Output
from hy3.cli.termination import RESUMES, terminable
from hy3.errors import InputError

if TYPE_CHECKING:
    from hy3.cli.model_folder import Model
    from hy3.kernels.scale_search_device import Device
    from hy3.quantize.plan import Plan
    from hy3.quantize.source import Source
    from hy3.quantize.stats import StatsByKey

_CHOICES = {
    "--scales": ("max", "four-over-six", "exact"),
    "--mtp": ("same", "bf16"),
    "--format": ("compressed-tensors", "modelopt"),
    "--fp8-activations": ("none", "dynamic"),
    "--lm-head": ("bf16", "fp8"),
}
_RECIPE_HELP = (
    "What becomes what: all-nvfp4, fp8, experts-nvfp4, experts-nvfp4-attn-fp8, or a path that ends "
    "in .toml."
)


def command(
    source: str = typer.Argument(
        ..., metavar="SRC", help="Folder of the BF16 checkpoint, or hf://org/name."
    ),
    out: Path = typer.Argument(..., help="Folder to write; new, empty or of an interrupted run."),
    recipe: str = typer.Option("experts-nvfp4", help=_RECIPE_HELP),
    layout: str = typer.Option("compressed-tensors", "--format", help="Or modelopt."),
    scales: str = typer.Option("exact", help="Scale rule of NVFP4: max, four-over-six or exact."),
    fp8_activations: str | None = typer.Option(
        None,
        help="Activations of FP8 linears: none (they stay BF16) or dynamic (FP8 in blocks).",
        show_default="the recipe's",
    ),
    lm_head: str | None = typer.Option(
        None, help="The output head: bf16 or fp8 (vLLM only).", show_default="the recipe's"
    ),
    mtp: str = typer.Option("same", help="The MTP layer: same (as the others) or bf16."),
    workers: int | None = typer.Option(
        None, min=1, help="Threads, each with a shard of its own.", show_default="cores"
    ),
    device: str = typer.Option("auto", help="Where scales are searched: auto, cpu or cuda."),
    discard_source: bool = typer.Option(
        False,
        "--discard-source",
        help="Of a model on a hub: keep no shard once all in it is durable in OUT.",
    ),
    keep_nonfinite: bool = typer.Option(
        False,
        "--keep-nonfinite",
        help="Copy tensors with NaN or infinity; reads the whole of SRC once before.",
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Print plan, time and room needed; keep nothing."
    ),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Quantize to NVFP4 and FP8, streaming; run it again to resume."""
    words = (scales, mtp, layout, fp8_activations, lm_head)
    for value, (option, known) in zip(words, _CHOICES.items(), strict=True):
        check_choice(option, value, known)
    from hy3.cli.model_folder import expand_home
    from hy3.cli.quantize_source import open_source_model, source_of
    from hy3.hardware.cores import usable_cores
    from hy3.kernels.scale_search_device import choose_device
    from hy3.quantize.plan import plan_source
    from hy3.quantize.recipe import load_recipe

    output, out = Output(json_output, quiet), expand_home(out)
    chosen = load_recipe(recipe).with_options(fp8_activations, lm_head)
    model = open_source_model(source, output, discard_source)
    planned, threads = source_of(model), workers or usable_cores()
    kept = _find_nonfinite(output, planned, model, threads) if keep_nonfinite else ()
    plan = plan_source(planned, chosen, scales, mtp, layout, kept)
    task = _Task(output, plan, out, threads, choose_device(device))
    if dry_run:
        _dry_run(task)
    else:
        _quantize(task, model, discard_source)


@dataclass(frozen=True)
class _Task:
    output: Output
    plan: Plan
    out: Path
    threads: int
    device: Device

    def describe(self, stats: StatsByKey, dry_run: bool) -> dict[str, Any]:
        """What both kinds of run report."""
        common = {"out": self.out.resolve().name, "dry_run": dry_run, "device": vars(self.device)}
        return _describe(self.plan, stats) | common

    def announce(self) -> None:
        """Where scales are searched, and why there."""
        self.output.text(f"scales are searched on {self.device.name} ({self.device.reason})")


def _find_nonfinite(output: Output, source: Source, model: Model, threads: int) -> Collection[str]:
    """The tensors that must be kept, each said with its count."""
    from hy3.quantize.nonfinite import find_nonfinite

    if model.remote is not None:
        raise InputError(
            "would fetch all of the model before it begins",
            hint="fetch the model into a folder first, or leave the option out",
            where="--keep-nonfinite",
        )
    found = find_nonfinite(source.checkpoint, threads, output.progress)
    for name, counts in found.items():
        output.warning(f"{name} holds {counts}: it and what engines build with it stay as they are")
    return found


def _dry_run(task: _Task) -> None:
    task.announce()
    _print_table(task.output, task.plan, {})
    prediction = _predict(task.output, task.plan, task.out, task.threads, task.device)
    task.output.result("quantize", task.describe({}, True) | {"prediction": prediction})


def _quantize(task: _Task, model: Model, discard: bool) -> None:
    from hy3.cli.quantize_source import shards_of
    from hy3.quantize.pipeline import quantize

    task.announce()
    output, plan, out = task.output, task.plan, task.out
    with terminable(RESUMES), shards_of(model, out, discard) as shards:
        outcome = quantize(plan, out, task.threads, output.progress, shards, task.device)
    if outcome.stats is None:
        output.text(f"{out} was complete already, from the same source")
    else:
        _print_table(output, plan, outcome.stats)
        output.text(f"{out} is complete; hy3 verify proves it")
    resumed = {"resumed_shards": outcome.resumed_shards, "was_complete": outcome.stats is None}
    output.result("quantize", task.describe(outcome.stats or {}, False) | resumed)


def _describe(plan: Plan, stats: StatsByKey) -> dict[str, Any]:
    from hy3.quantize.summary import class_rows

    return {
        "source": _source_name(plan),
        "parameters": vars(plan.parameters),
        "source_bytes": plan.source_bytes,
        "output_bytes": plan.output_bytes,
        "shards": len(plan.shards),
        "classes": [row.as_json() for row in class_rows(plan, stats)],
    }


def _source_name(plan: Plan) -> str:
    if plan.origin:
        return plan.origin.repository
    return plan.checkpoint.folder.resolve().name


def _print_table(output: Output, plan: Plan, stats: StatsByKey) -> None:
    from hy3.quantize.summary import summary_table
    from hy3.units import format_bytes

    output.table(*summary_table(plan, stats))
    before, after = format_bytes(plan.source_bytes), format_bytes(plan.output_bytes)
    output.text(f"{before} become {after} in {len(plan.shards)} shards")


def _predict(output: Output, plan: Plan, out: Path, threads: int, device: Device) -> dict[str, Any]:
    """Measures and prints; returns the result's part of it."""
    from hy3.quantize.pipeline import worker_limit
    from hy3.quantize.prediction import predict
    from hy3.units import format_bytes, format_seconds

    output.status("measuring the disks and the encoder for some seconds")
    found = predict(plan, out, worker_limit(plan, threads), device)
    rows = [
        (
            f"{activity} {term.name}",
            format_bytes(term.nbytes),
            f"{format_bytes(round(term.bytes_per_s))}/s",
            format_seconds(term.seconds),
        )
        for activity, term in found.terms()
    ]
    output.table(("on this machine", "bytes", "rate", "alone takes"), rows)
    if found.read_from == "OUT":
        output.text("SRC cannot be measured (holes, or not here): read at the rate of OUT's disk")
    output.text(
        f"about {format_seconds(found.overlapped_seconds)} on {found.workers} threads, bound by "
        f"{found.bound_by}; {format_seconds(found.serial_seconds)} if nothing overlapped; "
        f"{format_seconds(found.cpu_seconds)} of processor time"
    )
    needed, free = format_bytes(found.write.nbytes), format_bytes(found.free_bytes)
    output.text(f"OUT needs {needed}; its disk has {free} free")
    if not found.fits:
        output.warning(f"OUT does not fit: it needs {needed} and has {free}")
    return found.as_json()

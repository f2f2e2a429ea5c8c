"""``hy3 quantize``: BF16 in, NVFP4 and FP8 out; a rerun goes on where it stopped."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer

from hy3.cli import quantize_options as options
from hy3.cli.output import Output
from hy3.cli.quantize_task import Task
from hy3.cli.termination import RESUMES, terminable
from hy3.errors import InputError

if TYPE_CHECKING:
    from hy3.cli.model_folder import Model
    from hy3.quantize.source import Source


def command(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="Folder of the BF16 checkpoint, or hf://org/name.")
    ],
    out: options.Out,
    recipe: options.Recipe = "experts-nvfp4",
    layout: options.Layout = "compressed-tensors",
    scales: options.Scales = "exact",
    fp8_activations: options.Fp8Activations = None,
    lm_head: options.LmHead = None,
    mtp: options.Mtp = "same",
    workers: options.Workers = None,
    device: options.Device = "auto",
    discard_source: options.DiscardSource = False,
    keep_nonfinite: bool = typer.Option(
        False,
        "--keep-nonfinite",
        help="Copy tensors with NaN or infinity; reads the whole of SRC once before.",
    ),
    dry_run: options.DryRun = False,
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Quantize to NVFP4 and FP8, streaming; run it again to resume."""
    options.check_words(scales, mtp, layout, fp8_activations, lm_head)
    from hy3.cli.model_folder import output_folder
    from hy3.cli.quantize_source import open_source_model, source_of
    from hy3.hardware.cores import usable_cores
    from hy3.kernels.scale_search_device import choose_device
    from hy3.quantize.plan import plan_source
    from hy3.quantize.recipe import load_recipe

    output, out = Output(json_output, quiet), output_folder(out)
    chosen = load_recipe(recipe).with_options(fp8_activations, lm_head)
    model = open_source_model(source, output, discard_source)
    planned, threads = source_of(model), workers or usable_cores()
    kept = _find_nonfinite(output, planned, model, threads) if keep_nonfinite else ()
    plan = plan_source(planned, chosen, scales, mtp, layout, kept)
    task = Task(output, plan, out, threads, choose_device(device))
    if dry_run:
        output.result("quantize", task.dry_run())
    else:
        _quantize(task, model, discard_source)


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


def _quantize(task: Task, model: Model, discard: bool) -> None:
    from hy3.cli.quantize_source import shards_of
    from hy3.quantize.pipeline import quantize

    task.announce()
    output, plan, out = task.output, task.plan, task.out
    with terminable(RESUMES), shards_of(model, out, discard) as shards:
        outcome = quantize(plan, out, task.threads, output.progress, shards, task.device)
    if outcome.stats is None:
        output.text(f"{out} was complete already, from the same source")
    else:
        task.print_table(outcome.stats)
        output.text(f"{out} is complete; hy3 verify proves it")
    resumed = {"resumed_shards": outcome.resumed_shards, "was_complete": outcome.stats is None}
    output.result("quantize", task.describe(outcome.stats or {}, False) | resumed)

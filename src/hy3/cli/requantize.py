"""``hy3 requantize``: another maker's file in a recipe of ours, with what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hy3.cli import quantize_options as options
from hy3.cli.output import Output
from hy3.cli.quantize_task import Task
from hy3.cli.termination import RESUMES, terminable
from hy3.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from hy3.cli.model_folder import Model
    from hy3.quantize.cost import Cost


def command(
    source: Annotated[
        str,
        typer.Argument(metavar="IN", help="Folder of the quantized checkpoint, or hf://org/name."),
    ],
    out: options.Out,
    original: str | None = typer.Option(
        None, "--source", help="The BF16 original, to say what it costs."
    ),
    recipe: options.Recipe = "experts-nvfp4",
    layout: options.Layout = "compressed-tensors",
    scales: options.Scales = "exact",
    fp8_activations: options.Fp8Activations = None,
    lm_head: options.LmHead = None,
    mtp: options.Mtp = "same",
    workers: options.Workers = None,
    device: options.Device = "auto",
    discard_source: options.DiscardSource = False,
    dry_run: options.DryRun = False,
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Put another maker's checkpoint into a recipe of hy3's.

    Scales are searched anew, gate and up of an expert under one tensor scale. Run it
    again to resume. What cannot be decoded to finite values is refused: there is no
    --keep-nonfinite as of hy3 quantize.
    """
    options.check_words(scales, mtp, layout, fp8_activations, lm_head)
    from hy3.cli.model_folder import model_folder, output_folder
    from hy3.cli.quantize_source import open_source_model, source_of
    from hy3.hardware.cores import usable_cores
    from hy3.kernels.scale_search_device import choose_device
    from hy3.quantize.plan import plan_source
    from hy3.quantize.recipe import load_recipe

    output, out = Output(json_output, quiet), output_folder(out)
    chosen = load_recipe(recipe).with_options(fp8_activations, lm_head)
    beside = None if original is None else model_folder(original)
    model = open_source_model(source, output, discard_source)
    if beside and model.remote:
        raise InputError(
            "cannot be compared with a model whose shards pass by",
            hint="fetch IN into a folder first, or leave the option out",
            where="--source",
        )
    plan = plan_source(source_of(model), chosen, scales, mtp, layout, decodes=True)
    task = Task(output, plan, out, workers or usable_cores(), choose_device(device))
    told = _dry_run(task) if dry_run else _requantize(task, model, beside, discard_source)
    weights = {"weights": len(plan.stored), "source_scheme": plan.source_scheme}
    output.result("requantize", weights | told)


def _dry_run(task: Task) -> dict[str, Any]:
    told = task.dry_run()
    task.output.text(f"{len(task.plan.stored)} weights would be decoded and quantized anew")
    return told


def _requantize(task: Task, model: Model, beside: Path | None, discard: bool) -> dict[str, Any]:
    """Do it, and say what it cost."""
    from hy3.cli.quantize_source import shards_of
    from hy3.quantize.cost import compare_costs
    from hy3.quantize.pipeline import quantize

    task.announce()
    output, plan, out = task.output, task.plan, task.out
    with terminable(RESUMES), shards_of(model, out, discard) as shards:
        done = quantize(plan, out, task.threads, output.progress, shards, task.device)
    costs = compare_costs(model.folder, out, beside, output.progress) if beside else ()
    shown = _report_costs(output, costs)
    output.text(f"{len(plan.stored)} weights decoded and quantized anew into {out}")
    if done.rounded_values:
        output.text(f"{done.rounded_values} of their values had to be rounded to BF16 before")
    return task.describe(done.stats or {}, False) | {
        "rounded_values": done.rounded_values,
        "resumed_shards": done.resumed_shards,
        "was_complete": done.stats is None,
        "costs": shown,
    }


def _report_costs(output: Output, costs: tuple[Cost, ...]) -> dict[str, dict[str, Any]]:
    found = {
        cost.name: {
            "before": cost.before.relative if cost.before else None,
            "after": cost.after.relative if cost.after else None,
        }
        for cost in costs
    }
    rows = [(name, _shown(each["before"]), _shown(each["after"])) for name, each in found.items()]
    if rows:
        columns = ("class", "error as it came", "error now")
        output.table(columns, rows, title="Relative squared error against the original")
    else:
        output.text("what it costs is not known: name the BF16 original with --source")
    return found


def _shown(error: float | None) -> str:
    return "kept" if error is None else f"{error:.5f}"

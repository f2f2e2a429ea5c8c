"""``hy3 requantize``: another maker's file in a recipe of ours, with what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hy3.cli.choices import check_choice
from hy3.cli.output import Output
from hy3.cli.termination import RESUMES, terminable
from hy3.errors import InputError

if TYPE_CHECKING:
    from hy3.quantize.cost import Cost


def command(
    source: str = typer.Argument(
        ..., metavar="IN", help="Folder of the quantized checkpoint, or hf://org/name."
    ),
    out: Path = typer.Argument(..., help="Folder to write; new, empty or of an interrupted run."),
    original: str | None = typer.Option(
        None, "--source", help="The BF16 original, to say what it costs."
    ),
    recipe: str = typer.Option("experts-nvfp4", help="As for quantize."),
    scales: str = typer.Option("exact", help="Scale rule of NVFP4: max, four-over-six or exact."),
    workers: int | None = typer.Option(None, min=1, help="Threads.", show_default="cores"),
    device: str = typer.Option("auto", help="Where scales are searched: auto, cpu or cuda."),
    discard_source: bool = typer.Option(
        False,
        "--discard-source",
        help="Of a model on a hub: keep no shard once all in it is durable in OUT.",
    ),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Put another maker's checkpoint into a recipe of hy3's."""
    check_choice("--scales", scales, ("max", "four-over-six", "exact"))
    from hy3.cli.model_folder import expand_home, model_folder
    from hy3.cli.quantize_source import open_source_model, shards_of, source_of
    from hy3.hardware.cores import usable_cores
    from hy3.kernels.scale_search_device import choose_device
    from hy3.quantize.cost import compare_costs
    from hy3.quantize.pipeline import quantize
    from hy3.quantize.plan import plan_source
    from hy3.quantize.recipe import load_recipe

    output, out = Output(json_output, quiet), expand_home(out)
    chosen, threads = load_recipe(recipe), workers or usable_cores()
    beside = None if original is None else model_folder(original)
    model = open_source_model(source, output, discard_source)
    if beside and model.remote:
        raise InputError(
            "cannot be compared with a model whose shards pass by",
            hint="fetch IN into a folder first, or leave the option out",
            where="--source",
        )
    plan = plan_source(source_of(model), chosen, scales, "same", decodes=True)
    with terminable(RESUMES), shards_of(model, out, discard_source) as shards:
        done = quantize(plan, out, threads, output.progress, shards, choose_device(device))
    costs = compare_costs(model.folder, out, beside, output.progress) if beside else ()
    shown = _report_costs(output, costs)
    output.text(f"{len(plan.stored)} weights decoded and quantized anew into {out}")
    if done.rounded_values:
        output.text(f"{done.rounded_values} of their values had to be rounded to BF16 before")
    result = {
        "weights": len(plan.stored),
        "source_scheme": plan.source_scheme,
        "rounded_values": done.rounded_values,
        "resumed_shards": done.resumed_shards,
        "was_complete": done.stats is None,
        "costs": shown,
    }
    output.result("requantize", result)


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

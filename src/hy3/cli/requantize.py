"""``hy3 requantize``: another maker's file in a recipe of ours, with what it costs."""

from __future__ import annotations

from pathlib import Path

import typer

from hy3.cli.choices import check_choice
from hy3.cli.output import Output


def command(
    source: str = typer.Argument(..., metavar="IN", help="Folder of the quantized checkpoint."),
    out: Path = typer.Argument(..., help="Folder to write; new or empty."),
    original: str | None = typer.Option(
        None, "--source", help="The BF16 original, to say what it costs."
    ),
    recipe: str = typer.Option("experts-nvfp4", help="What becomes what, as for quantize."),
    scales: str = typer.Option("exact", help="Scale rule of NVFP4: max, four-over-six or exact."),
    workers: int | None = typer.Option(None, min=1, help="Threads.", show_default="cores"),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Search another maker's scales anew, gate and up of an expert under one tensor scale."""
    check_choice("--scales", scales, ("max", "four-over-six", "exact"))
    from hy3.cli.model_folder import expand_home, model_folder
    from hy3.hardware.cores import usable_cores
    from hy3.quantize.recipe import load_recipe
    from hy3.quantize.requantize import requantize

    output, out = Output(json_output, quiet), expand_home(out)
    done = requantize(
        model_folder(source),
        out,
        None if original is None else model_folder(original),
        load_recipe(recipe),
        scales,
        workers or usable_cores(),
        output.progress,
    )
    costs = {
        cost.name: {
            "before": cost.before.relative if cost.before else None,
            "after": cost.after.relative if cost.after else None,
        }
        for cost in done.costs
    }
    rows = [(name, _shown(each["before"]), _shown(each["after"])) for name, each in costs.items()]
    if rows:
        columns = ("class", "error as it came", "error now")
        output.table(columns, rows, title="Relative squared error against the original")
    else:
        output.text("what it costs is not known: name the BF16 original with --source")
    output.text(f"{done.weights} weights decoded and quantized anew into {out}")
    result = {"weights": done.weights, "rounded_values": done.rounded_values, "costs": costs}
    output.result("requantize", result)


def _shown(error: float | None) -> str:
    return "kept" if error is None else f"{error:.5f}"

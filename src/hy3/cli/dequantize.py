"""``hy3 dequantize``: the BF16 twin of a quantized checkpoint."""

from __future__ import annotations

from pathlib import Path

import typer

from hy3.cli.output import Output
from hy3.cli.termination import RESUMES, terminable


def command(
    source: str = typer.Argument(
        ..., metavar="IN", help="Local folder of the quantized checkpoint."
    ),
    out: Path = typer.Argument(..., help="Folder to write; new, empty or of an interrupted run."),
    workers: int | None = typer.Option(
        None, min=1, help="Threads, each with a shard of its own.", show_default="cores"
    ),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Decode a quantized checkpoint to BF16, for other engines.

    Run it again to resume.
    """
    from hy3.cli.model_folder import model_folder, output_folder
    from hy3.hardware.cores import usable_cores
    from hy3.quantize.dequantize import dequantize
    from hy3.quantize.plan import plan_twin
    from hy3.units import format_bytes

    output, out = Output(json_output, quiet), output_folder(out)
    plan = plan_twin(model_folder(source))
    with terminable(RESUMES):
        twin = dequantize(plan, out, workers or usable_cores(), output.progress)
    exactness = (
        "without loss"
        if not twin.rounded_values
        else f"{twin.rounded_values} values rounded, which BF16 cannot hold"
    )
    output.text(
        f"{twin.weights} weights decoded, {exactness}; {format_bytes(plan.output_bytes)} in {out}"
    )
    output.result(
        "dequantize",
        {
            "weights": twin.weights,
            "rounded_values": twin.rounded_values,
            "lossless": twin.rounded_values == 0,
            "output_bytes": plan.output_bytes,
            "resumed_shards": twin.resumed_shards,
        },
    )

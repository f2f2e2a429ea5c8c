"""``hy3 demo``: the whole path on the bundled tiny model, offline, with a table at its end."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from hy3.checkpoint.model_config import CONFIG_NAME
from hy3.cli.output import Output
from hy3.errors import InputError

MODEL = Path("models/hy3-tiny")


def command(
    model: Path = typer.Option(
        None, help="BF16 checkpoint to take.", show_default="models/hy3-tiny of this repository"
    ),
    out: Path = typer.Option(Path("hy3-demo"), help="Folder for what the demo makes."),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Run the whole path on a tiny model, offline.

    Quantize, verify, serve, chat, bench and compare: each step in one row of a table.
    """
    from dataclasses import asdict

    from hy3.demo.path import HELD, run_steps
    from hy3.demo.steps import STEPS
    from hy3.units import format_seconds

    output = Output(json_output, quiet)
    # The matrices are small: one thread is no slower than two, and never waits for a busy core.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    results, found = run_steps(STEPS, find_model(model), out, output.status)
    ok = all(result.status == HELD for result in results)
    rows = [
        (r.name, r.status, format_seconds(r.seconds) if r.seconds else "-", r.detail)
        for r in results
    ]
    output.table(("step", "status", "time", "found"), rows)
    total = format_seconds(sum(result.seconds for result in results))
    held = sum(result.status == HELD for result in results)
    output.text(f"{held} of {len(results)} steps held, {total}; files in {out}")
    output.result("demo", {"ok": ok, "steps": [asdict(result) for result in results], **found})
    if not ok:
        raise typer.Exit(1)


def find_model(model: Path | None) -> Path:
    """The given folder, else ``models/hy3-tiny`` here or in the checkout this runs from."""
    if model is None:
        checkout = Path(__file__).resolve().parents[3]
        candidates = [MODEL, checkout / MODEL]
        model = next((path for path in candidates if (path / CONFIG_NAME).exists()), MODEL)
    if not (model / CONFIG_NAME).exists():
        raise InputError(
            "no checkpoint there",
            hint="run it in a checkout of the repository, or name a BF16 checkpoint with --model",
            where=str(model),
        )
    return model

"""``hy3 verify``: prints what is proved about a checkpoint; exit 1 when a check fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from hy3.cli.output import Output

if TYPE_CHECKING:
    from hy3.quantize.verdict import Verdict


def command(
    out: str = typer.Argument(..., help="Local folder of the checkpoint."),
    source: str | None = typer.Option(
        None, "--source", help="Local folder of what it was made from, or of its original in BF16."
    ),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Re-read a checkpoint and prove it.

    Completeness, scales, engine matching, errors, hashes.
    """
    from hy3.cli.model_folder import model_folder
    from hy3.quantize.verify import bytes_to_read, verify

    output = Output(json_output, quiet)
    folder = model_folder(out)
    original = None if source is None else model_folder(source)
    with output.progress("verify", bytes_to_read(folder, original)) as advance:
        verdict = verify(folder, original, advance)
    _print(output, verdict)
    output.result("verify", verdict.as_json())
    if not verdict.ok:
        raise typer.Exit(1)


def _print(output: Output, verdict: Verdict) -> None:
    rows = [(check.id, check.status.replace("_", " "), check.detail) for check in verdict.checks]
    output.table(("check", "status", "detail"), rows)
    for check in verdict.checks:
        if check.status in ("fail", "warn") and check.tensors:
            output.names(f"{check.id}:", check.tensors)
    for name, error in verdict.error_by_class.items():
        output.text(f"{name}: relative squared error {error.relative:.5f}")
    counts = f"{verdict.count('pass')} of {len(verdict.checks)} checks passed"
    if open_ := verdict.count("not_proved"):
        counts += f", {open_} not proved (the table says what they want)"
    output.text(f"verified: {counts}" if verdict.ok else f"NOT verified: {counts}")

"""``hy3 repair``: sets the metadata of a checkpoint right, with a backup; weights stay."""

from __future__ import annotations

import json

import typer

from hy3.cli.output import Output

_SHOWN_CHARACTERS = 60


def command(
    folder: str = typer.Argument(..., metavar="DIR", help="Local folder of the checkpoint."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show the changes and write nothing."),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Mend a checkpoint's metadata; no weight is touched.

    It mends token_suffix, dtype, top_k and the ignore list; every changed file is kept
    as .bak.
    """
    from hy3.cli.model_folder import model_folder
    from hy3.quantize.repair import plan_repair, repair

    output = Output(json_output, quiet)
    plan = plan_repair(model_folder(folder))
    rows = [
        (change.file, change.key, _shown(change.before), _shown(change.after))
        for change in plan.changes
    ]
    if rows:
        output.table(("file", "key", "is", "becomes"), rows)
    backups = [] if dry_run else repair(plan)
    for line in plan.left:
        output.warning(f"not for metadata to mend: {line}")
    if not rows:
        output.text("nothing to repair")
    elif dry_run:
        output.text("nothing was written: this was a dry run")
    else:
        output.text(f"repaired; kept as they were: {', '.join(backups)}")
    output.result(
        "repair",
        {
            "changes": [vars(change) for change in plan.changes],
            "backups": backups,
            "left": list(plan.left),
            "dry_run": dry_run,
        },
    )


def _shown(value: object) -> str:
    text = "-" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."

"""``hy3 quantize``: BF16 checkpoint in, NVFP4 checkpoint out; a rerun goes on where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hy3.cli.output import Output
from hy3.cli.termination import terminable
from hy3.errors import InputError

if TYPE_CHECKING:
    from hy3.kernels.scale_search_device import Device
    from hy3.quantize.plan import Plan
    from hy3.quantize.stats import StatsByKey

_RULES = ("max", "four-over-six", "exact")
_MTP = ("same", "bf16")
_RESUMES = "what is finished is kept: run the same command again"


def command(
    source: str = typer.Argument(
        ..., metavar="SRC", help="Folder of the BF16 checkpoint, or hf://org/name."
    ),
    out: Path = typer.Argument(..., help="Folder to write; new, empty or of an interrupted run."),
    recipe: str = typer.Option("experts-nvfp4", help="Which tensors become what."),
    scales: str = typer.Option("exact", help="Scale rule: max, four-over-six or exact."),
    mtp: str = typer.Option("same", help="Experts of the MTP layer: same (as the others) or bf16."),
    workers: int | None = typer.Option(
        None, min=1, help="Threads, each with a shard of its own.", show_default="cores"
    ),
    device: str = typer.Option("auto", help="Where scales are searched: auto, cpu or cuda."),
    discard_source: bool = typer.Option(
        False,
        "--discard-source",
        help="Of a model on a hub: keep no shard once all in it is durable in OUT.",
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Print plan, time and room needed; keep nothing."
    ),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Quantize the routed experts to NVFP4, streaming; run it again to resume."""
    _check_choice("--scales", scales, _RULES)
    _check_choice("--mtp", mtp, _MTP)
    from hy3.cli.model_folder import expand_home
    from hy3.cli.quantize_source import open_source_model, shards_of, source_of
    from hy3.hardware.cores import usable_cores
    from hy3.kernels.scale_search_device import choose_device
    from hy3.quantize.plan import plan_source
    from hy3.quantize.recipe import load_recipe

    output, out = Output(json_output, quiet), expand_home(out)
    chosen_recipe = load_recipe(recipe)
    model = open_source_model(source, output, discard_source)
    plan = plan_source(source_of(model), chosen_recipe, scales, mtp)
    chosen = choose_device(device)
    output.text(f"scales are searched on {chosen.name} ({chosen.reason})")
    common = {"out": out.resolve().name, "dry_run": dry_run, "device": vars(chosen)}
    threads = workers or usable_cores()
    if dry_run:
        _print_table(output, plan, {})
        prediction = _predict(output, plan, out, threads, chosen)
        output.result("quantize", _describe(plan, {}) | common | {"prediction": prediction})
        return
    from hy3.quantize.pipeline import quantize

    with terminable(_RESUMES), shards_of(model, out, discard_source) as shards:
        outcome = quantize(plan, out, threads, output.progress, shards, chosen)
    if outcome.stats is None:
        output.text(f"{out} was complete already, from the same source")
    else:
        _print_table(output, plan, outcome.stats)
        output.text(f"{out} is complete; hy3 verify proves it")
    common |= {"resumed_shards": outcome.resumed_shards, "was_complete": outcome.stats is None}
    output.result("quantize", _describe(plan, outcome.stats or {}) | common)


def _check_choice(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        hint = f"known are: {', '.join(known)}"
        raise InputError(f"{value!r} is unknown", hint=hint, where=option)


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

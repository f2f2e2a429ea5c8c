"""``hy3 plan``: does it fit, how fast, with which settings, and why; nothing is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hy3.cli import plan_options as options
from hy3.cli.choices import check_choice
from hy3.cli.output import Output
from hy3.cli.plan_export import Export, launch_files, parse_export
from hy3.errors import InputError

if TYPE_CHECKING:
    from hy3.hardware.device import Hardware
    from hy3.plan.model_shape import ModelShape
    from hy3.plan.planner import Alternative, LaunchPlan

_GIB = 2**30


def command(
    model: options.Model,
    hardware: options.Hardware,
    recipe: str | None = typer.Option(None, help="Plan it as this recipe of quantize makes it."),
    context: options.Context = None,
    concurrency: options.Concurrency = 1,
    engine: options.Engine = None,
    tp: options.Tp = None,
    pp: options.Pp = 1,
    ep: options.Ep = False,
    drafts: options.Drafts = None,
    acceptance: options.Acceptance = None,
    kv_dtype: options.KvDtype = None,
    graphs: options.Graphs = None,
    utilization: options.Utilization = None,
    free_gib: options.FreeGib = None,
    sequence_tokens: options.SequenceTokens = None,
    export: str | None = typer.Option(None, help="Write launch files: compose or systemd."),
    export_to: Path | None = typer.Option(
        None, help="Folder for them, made if missing.", show_default="hy3-launch"
    ),
    model_path: str | None = typer.Option(None, help="The checkpoint's path on the nodes."),
    nodes: str | None = typer.Option(None, help="Addresses on the fabric, the leader's first."),
    picture: Path | None = typer.Option(None, help="Draw each rank's memory into this .svg file."),
    explain: bool = typer.Option(False, "--explain", help="Show reasons, sources and every term."),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Show whether a model fits some hardware, how fast, and why."""
    from hy3.plan.planner import make_plan
    from hy3.plan.request import Request

    _check_options(engine, kv_dtype, picture)
    asked = parse_export(export, export_to, model, model_path, nodes, recipe)
    output = Output(json_output, quiet)
    machine, measured = _hardware(hardware)
    free = measured if free_gib is None else _free_bytes(free_gib, machine)
    shape = _read_shape(model, recipe, output)
    request = Request(
        context=context,
        concurrency=concurrency,
        engine=engine,
        tensor_parallel=tp,
        pipeline_parallel=pp,
        expert_parallel=ep,
        draft_depth=drafts,
        acceptance=options.parse_acceptance(acceptance),
        kv_dtype=kv_dtype,
        graphs=graphs,
        utilization=utilization,
        sequence_tokens=sequence_tokens,
        free_bytes=free,
    )
    _answer(output, make_plan(shape, machine, request), asked, picture, explain)


def _answer(
    output: Output, plan: LaunchPlan, asked: Export | None, picture: Path | None, explain: bool
) -> None:
    """Print the plan and write its files; what cannot be written is refused before any is."""
    files = launch_files(plan, asked) if asked and plan.fits else {}
    _print(output, plan, explain)
    if asked and not plan.fits:
        raise InputError(
            "a launch that does not fit is not written",
            hint="change --context, --tp or the hardware until the plan fits",
            where="--export",
        )
    written = _write(files)
    drawn = _draw(plan, picture)
    for name in [*written, *drawn]:
        output.text(f"written: {name}")
    output.result("plan", describe(plan) | {"exported": written, "pictures": drawn})


def describe(plan: LaunchPlan) -> dict[str, Any]:
    """The plan as JSON; bytes, seconds and tokens a second."""
    memory, decode = plan.memory, plan.decode
    return {
        "model": plan.shape.name,
        "hardware": plan.hardware.text,
        "fits": plan.fits,
        "all_sequences_fit": plan.memory.holds_all(plan.settings),
        "settings": vars(plan.settings),
        "choices": [vars(choice) for choice in plan.choices],
        "broken_rules": [vars(rule) for rule in plan.broken],
        "memory": {
            "weights": [vars(term) for term in memory.weights],
            "others": [vars(term) for term in memory.others],
            "weight_bytes": memory.weight_bytes,
            "budget_bytes": memory.budget_bytes,
            "utilization": memory.utilization,
            "utilization_reason": memory.utilization_reason,
            "kv_bytes": memory.kv_bytes,
            "kv_bytes_per_token": memory.kv_bytes_per_token,
            "kv_tokens": memory.kv_tokens,
            "load_peak_bytes": memory.load_peak_bytes,
        },
        "largest_context": plan.largest_context,
        "largest_concurrency": plan.largest_concurrency,
        "decode": {
            "terms": [vars(term) for term in decode.terms],
            "tokens_per_step": decode.tokens_per_step,
            "in_flight": vars(plan.in_flight),
            **_speeds(plan),
            "confidence": decode.confidence,
        },
        "sequence_tokens": plan.sequence_tokens,
        "prefill_s": plan.prefill_s and list(plan.prefill_s),
        "kernels": [vars(kernel) for kernel in plan.kernels],
        "alternatives": [vars(each) for each in plan.alternatives],
    }


def _speeds(plan: LaunchPlan) -> dict[str, float | None]:
    """Seconds and tokens a second; None where none can be told."""
    decode, speed = plan.decode, plan.decode.stream_tok_s
    found = {
        "step_s": decode.step_s,
        "stream_tok_s": speed,
        "stream_low": speed * decode.low,
        "stream_high": speed * decode.high,
        "total_tok_s": speed * plan.settings.concurrency,
    }
    return {name: value if decode.told else None for name, value in found.items()}


def _check_options(engine: str | None, kv_dtype: str | None, picture: Path | None) -> None:
    from hy3.plan.settings import ENGINES, KV_DTYPE_BYTES

    check_choice("--engine", engine, ENGINES)
    check_choice("--kv-dtype", kv_dtype, KV_DTYPE_BYTES)
    if picture is not None and picture.suffix != ".svg":
        hint = "name a file that ends in .svg"
        raise InputError(f"{picture.name!r} is no SVG file", hint=hint, where="--picture")


def _write(files: dict[Path, str]) -> list[str]:
    """Write the launch files, their folder as well."""
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [str(path) for path in files]


def _draw(plan: LaunchPlan, path: Path | None) -> list[str]:
    """Write the picture of the memory, if one is asked for."""
    if path is None:
        return []
    from hy3.cli.plan_picture import draw_memory

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(draw_memory(plan))
    return [str(path)]


def _read_shape(model: str, recipe: str | None, output: Output) -> ModelShape:
    """Of the checkpoint's headers, or of what a recipe makes of its config alone."""
    from hy3.checkpoint.model_config import load_config
    from hy3.cli.collector import collector_at_rest
    from hy3.cli.model_folder import open_model
    from hy3.plan.model_shape import shape_of, shape_of_forms

    opened = open_model(model, output)
    config = load_config(opened.folder)
    with collector_at_rest():
        if recipe is None:
            return shape_of(opened.name, opened.checkpoint(), config)
        from hy3.quantize.assignment import assign
        from hy3.quantize.recipe import load_recipe

        forms = assign(config, load_recipe(recipe), "same", "compressed-tensors").forms
        return shape_of_forms(f"{opened.name} as {recipe}", config, forms)


def _free_bytes(free_gib: float, hardware: Hardware) -> int:
    """As stated, which cannot be more than the device has."""
    visible = hardware.device.visible_bytes
    if free_gib * _GIB > visible:
        raise InputError(
            f"{free_gib:g} GiB are more than the {visible / _GIB:.1f} GiB that a "
            f"{hardware.device.label} has",
            hint="state what is free on one device",
            where="--free-gib",
        )
    return int(free_gib * _GIB)


def _hardware(text: str) -> tuple[Hardware, int | None]:
    from hy3.hardware.device import parse_hardware

    if text != "auto":
        return parse_hardware(text), None
    from hy3.hardware.probe import probe_hardware

    found = probe_hardware()
    return found.hardware, found.free_bytes


def _gib(nbytes: float) -> str:
    return f"{nbytes / _GIB:.1f} GiB"


def _print(output: Output, plan: LaunchPlan, explain: bool) -> None:
    decode = plan.decode
    output.text(f"{plan.shape.name} on {plan.hardware.text}")
    for rule in plan.broken:
        output.text(f"cannot run: {rule.sentence} ({rule.source})")
    if not plan.broken:
        output.text(_verdict(plan))
    device = plan.hardware.device
    if device.unified and plan.memory.free_bytes == device.free_bytes:
        output.text(f"mind: {device.note} (say --free-gib as your machine has it)")
    idle = plan.hardware.devices - plan.settings.ranks
    if idle > 0:
        output.text(f"{idle} of {plan.hardware.devices} devices would do nothing: {_tp(plan)}")
    if not plan.broken:
        _print_memory(output, plan)
    if plan.fits:
        _print_speed(output, plan)
    _print_alternatives(output, plan)
    if explain:
        _print_reasons(output, plan)
    else:
        confidence = f"{decode.confidence}; " if plan.fits and decode.told else ""
        output.text(f"{confidence}--explain shows every reason and source")


def _print_alternatives(output: Output, plan: LaunchPlan) -> None:
    """What one change would give; of a plan that cannot run only changes that make it run."""
    found = [each for each in plan.alternatives if plan.fits or each.fits]
    if not found:
        output.text("no single change (of drafts, TP, FP8, graphs or KV cache) makes it fit")
        return
    rows = [
        (
            each.name,
            *_speed_cells(each),
            str(each.kv_tokens),
            "yes" if each.fits else "no",
        )
        for each in found
    ]
    columns = ("instead", "tok/s a stream", "interval", "KV tokens", "fits")
    title = "What one change would give" if plan.fits else "One change that makes it fit"
    output.table(columns, rows, title=title)


def _speed_cells(each: Alternative) -> tuple[str, str]:
    if each.tok_s_stream is None:
        return "cannot tell", "-"
    return f"{each.tok_s_stream:.1f}", f"{each.low:.1f} to {each.high:.1f}"


def _tp(plan: LaunchPlan) -> str:
    """Why tensor parallelism is what it is."""
    reason = next(each.reason for each in plan.choices if each.setting == "tensor parallel")
    return f"TP={plan.settings.tensor_parallel} is {reason}"


def _verdict(plan: LaunchPlan) -> str:
    settings, memory = plan.settings, plan.memory
    if memory.more_than_free:
        return (
            f"does not fit: {memory.utilization:.2f} of what is visible are "
            f"{_gib(memory.budget_bytes)}, {_gib(memory.free_bytes)} are free, and an engine "
            "refuses to start with less"
        )
    pool = f"{memory.kv_tokens} tokens of KV cache beside {_gib(memory.weight_bytes)} of weights"
    if memory.kv_bytes <= 0:
        others = sum(term.nbytes for term in memory.others)
        return (
            f"does not fit: {_gib(memory.weight_bytes)} of weights and {_gib(others)} beside them "
            f"leave no room in {_gib(memory.budget_bytes)}"
        )
    if not plan.fits:
        return f"does not fit: {pool}, not even one sequence of {settings.context} tokens"
    if memory.holds_all(settings):
        return f"fits: {pool}, enough for {settings.concurrency} x {settings.context} tokens"
    return (
        f"fits: {pool}; {settings.concurrency} sequences share them, so not all of them can "
        f"reach {settings.context} tokens at once"
    )


def _print_memory(output: Output, plan: LaunchPlan) -> None:
    memory = plan.memory
    terms = [*memory.weights, *memory.others]
    rows = [
        (term.name, _gib(term.nbytes), _bar(term.nbytes, memory.budget_bytes), term.reason)
        for term in terms
        if term.nbytes >= 0.005 * memory.budget_bytes
    ]
    free = max(memory.kv_bytes, 0)
    rows.append(
        (
            "KV cache",
            _gib(free),
            _bar(free, memory.budget_bytes),
            f"{memory.kv_tokens} tokens of {memory.kv_bytes_per_token} bytes",
        )
    )
    title = (
        f"Memory of the fullest rank: {_gib(memory.budget_bytes)} "
        f"({memory.utilization:.2f} of what is visible)"
    )
    output.table(("part", "size", "share", "what it is"), rows, title=title)
    output.text(
        f"longest context for {plan.settings.concurrency} sequences {plan.largest_context}, "
        f"most sequences of {plan.settings.context} tokens {plan.largest_concurrency}"
    )


def _bar(part: float, whole: float) -> str:
    """A picture of a share, 20 cells wide at the most."""
    return "#" * round(20 * min(part / whole, 1.0)) if whole else ""


def _print_speed(output: Output, plan: LaunchPlan) -> None:
    decode, count = plan.decode, plan.settings.concurrency
    if plan.prefill_s is None:
        output.text(f"speed: {decode.confidence}")
        return
    rows = [(term.name, f"{term.seconds * 1e3:.2f} ms", term.reason) for term in decode.terms]
    title = f"One decode step: {decode.step_s * 1e3:.1f} ms, {decode.tokens_per_step:.2f} tokens"
    output.table(("term", "time", "what it is"), rows, title=title)
    speed, low, high = decode.stream_tok_s, decode.low, decode.high
    output.text(
        f"{speed:.1f} tok/s a stream ({speed * low:.1f} to {speed * high:.1f}), "
        f"{speed * count:.1f} in all, at {plan.sequence_tokens} tokens a sequence; the first token "
        f"of such a prompt after {plan.prefill_s[0]:.2f} to {plan.prefill_s[1]:.2f} s"
    )
    if plan.in_flight.batches > 1:
        output.text(
            f"{plan.in_flight.batches} batches of up to {plan.in_flight.streams} streams pass the "
            "stages at a time; the lower end is that of all streams in one batch, where those stay "
            "that arrive together"
        )
    held = plan.memory.kv_tokens // plan.sequence_tokens
    if held < count:
        output.text(f"the cache holds {held} such sequences at a time: of {count}, others wait")


def _print_reasons(output: Output, plan: LaunchPlan) -> None:
    rows = [(each.setting, each.value, each.reason, each.source) for each in plan.choices]
    output.table(("setting", "value", "why", "source"), rows, title="Choices")
    output.text(f"utilization: {plan.memory.utilization_reason}")
    kernels = [(each.weights, each.kernel, each.reason, each.caution) for each in plan.kernels]
    output.table(("weights", "kernel", "why", "beware"), kernels, title="Kernels")
    device = plan.hardware.device
    title = f"{device.label}: {device.note}" if device.note else device.label
    output.table(("figure", "source"), list(device.sources.items()), title=title)
    output.text(f"speed: {plan.decode.confidence} (benchmarks/results/plan_accuracy.json)")

"""``hy3 doctor``: what is wrong with machines, checkpoint and engine, before anything is loaded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import typer

from hy3.cli.output import Output
from hy3.errors import EnvironmentFault, InputError

if TYPE_CHECKING:
    from hy3.doctor.host import Host
    from hy3.doctor.survey import Answer, Request

_ORDER = ("PROBLEM", "INCONCLUSIVE", "NOT CHECKED", "CLEAN")


def command(
    nodes: str | None = typer.Option(
        None, "--nodes", help="Machines as ssh knows them, as a,b.", show_default="this one"
    ),
    model: str | None = typer.Option(None, "--model", help="Local folder of a checkpoint."),
    engine: str | None = typer.Option(
        None, "--engine", help="With --model: what is to serve it, as vllm==0.26.0."
    ),
    fabric: str | None = typer.Option(
        None, help="Addresses of both nodes on the fabric: moves data between them."
    ),
    mtu: int = typer.Option(9000, min=576, help="What the fabric is meant to carry."),
    watch: float = typer.Option(
        0, min=0, max=86400, help="Read the fabric again for so many seconds."
    ),
    gpu_load: float = typer.Option(0, min=0, max=3600, help="Work each GPU for so many seconds."),
    dry_load: bool = typer.Option(
        False, "--dry-load", help="With --model: let the engine build it, without its data."
    ),
    engine_python: str = typer.Option(
        "python3", help="What starts the engine's Python, for what is tried out."
    ),
    fix: str | None = typer.Option(
        None, "--fix", help="Show this check's commands, then run them."
    ),
    yes: bool = typer.Option(False, "--yes", help="With --fix: run without asking."),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Look for known problems of machines, checkpoint and engine.

    Every check comes with its evidence and what to do. Changes nothing but by --fix.
    """
    from hy3.cli.words import command_words
    from hy3.doctor.checks.nodes import fact_table
    from hy3.doctor.survey import Trials, look

    output = Output(json_output, quiet)
    _check_options(model, engine, dry_load, fix, yes)
    request = _request(nodes, model, engine)
    pair, python = _pair(fabric, request.nodes), command_words(engine_python, "--engine-python")
    trials = Trials(python, watch, gpu_load, dry_load, pair, mtu)
    if request.nodes or trials != Trials(python, mtu=mtu):
        output.status("looking; a machine that does not answer is given two minutes")
    hosts, answers = look(request, trials)
    facts = fact_table(hosts) if len(hosts) > 1 else {}
    if fix is not None:
        answers = _fix(output, fix, yes, answers, hosts, lambda: look(request.again(), trials)[1])
    elif len(hosts) > 1:
        _print_facts(output, facts)
    _print(output, answers)
    bad = [each for each in answers if each.finding.verdict == "PROBLEM"]
    checks = [each.as_json() for each in answers]
    output.result("doctor", {"ok": not bad, "checks": checks, "nodes": facts})
    if bad:
        raise typer.Exit(1)


def _check_options(
    model: str | None, engine: str | None, dry_load: bool, fix: str | None, yes: bool
) -> None:
    if yes and fix is None:
        raise InputError(
            "there is nothing to agree to", hint="name a check: --fix ID", where="--yes"
        )
    if (engine is not None or dry_load) and model is None:
        raise InputError(
            "what an engine must be able to do depends on the checkpoint",
            hint="name it too: --model DIR",
            where="--dry-load" if dry_load else "--engine",
        )


def _request(nodes: str | None, model: str | None, engine: str | None) -> Request:
    from hy3.cli.model_folder import model_folder
    from hy3.doctor.engine_matrix import parse_engine
    from hy3.doctor.model_case import open_case
    from hy3.doctor.survey import Request
    from hy3.nodes.node import parse_names

    chosen = parse_engine(engine) if engine is not None else None
    case = open_case(model_folder(model), chosen) if model is not None else None
    return Request(parse_names(nodes) if nodes is not None else (), case)


def _pair(fabric: str | None, nodes: Sequence[str]) -> tuple[str, str] | None:
    """The two addresses of the fabric, if they were given, for the two nodes."""
    from hy3.nodes.node import parse_names

    if fabric is None:
        return None
    addresses = parse_names(fabric)
    if len(addresses) != 2 or len(nodes) != 2:
        raise InputError(
            f"{len(addresses)} addresses are given for {len(nodes)} nodes",
            hint="name two machines and two addresses: --nodes a,b --fabric 10.0.0.1,10.0.0.2",
            where="--fabric",
        )
    return addresses[0], addresses[1]


def _print_facts(output: Output, facts: dict[str, dict[str, str]]) -> None:
    """What the nodes are, side by side; a star where they differ."""
    names = list(next(iter(facts.values())))
    rows = [
        (f"{fact}{' *' if len(set(values.values())) > 1 else ''}", *values.values())
        for fact, values in facts.items()
    ]
    output.table(("fact", *names), rows, title="Nodes (* differs)")


def _print(output: Output, answers: Sequence[Answer]) -> None:
    by_verdict = {
        verdict: [each for each in answers if each.finding.verdict == verdict] for verdict in _ORDER
    }
    unasked = by_verdict["NOT CHECKED"]
    rows = [
        (verdict, each.check, each.where, each.finding.evidence)
        for verdict, found in by_verdict.items()
        if found is not unasked
        for each in found
    ]
    if rows:
        output.table(("verdict", "check", "where", "what was seen"), rows)
    for line in _unasked_lines(unasked):
        output.text(line)
    for each in answers:
        if each.finding.verdict != "PROBLEM" or each.finding.fix is None:
            continue
        output.text(f"\n{each.check} ({each.where}, {each.severity}): {each.title}")
        output.text(f"  fix: {each.finding.fix.text}")
        for line in each.finding.fix.shown():
            output.text(f"    {line}")
        if each.source:
            output.text(f"  see {each.source}")
    output.text(", ".join(f"{len(found)} {verdict}" for verdict, found in by_verdict.items()))


def _unasked_lines(answers: Sequence[Answer]) -> list[str]:
    """What was not looked at: a line for each option that would ask, and one for all the rest."""
    groups: dict[tuple[str, str], list[str]] = {}
    for each in answers:
        groups.setdefault((each.finding.evidence, each.where), []).append(each.check)
    one_place = len({each.where for each in answers}) == 1
    lines, others = [], []
    for (reason, where), checks in groups.items():
        count = f"{len(checks)}" if one_place else f"{where}, {len(checks)}"
        if "--" in reason:
            lines.append(f"NOT CHECKED, {reason} ({count}: {', '.join(checks)})")
        else:
            others.append(f"{reason} ({count})")
    if others:
        lines.append(f"NOT CHECKED, nothing to look at (--json has each): {'; '.join(others)}")
    return lines


def _fix(
    output: Output,
    check: str,
    yes: bool,
    answers: list[Answer],
    hosts: Sequence[Host],
    look_again: Callable[[], list[Answer]],
) -> list[Answer]:
    """Run the commands of one check where it found its problem; the answers afterwards."""
    wanted = [each for each in answers if each.check == check]
    if not wanted:
        known = ", ".join(sorted({each.check for each in answers}))
        raise InputError(f"{check!r} is no check", hint=f"checks are {known}", where="--fix")
    todo = _commands(output, wanted, hosts)
    if not todo or not (yes or _agreed(output)):
        return wanted
    for arguments in todo:
        # What the commands print is not data.
        done = subprocess.run(arguments, stdout=sys.stderr, check=False)
        if done.returncode:
            raise EnvironmentFault(
                f"{arguments[0]} ended with {done.returncode}; what follows it was not run",
                hint="run the shown commands by hand",
                where=check,
            )
    return [each for each in look_again() if each.check == check]


def _commands(
    output: Output, wanted: Sequence[Answer], hosts: Sequence[Host]
) -> list[tuple[str, ...]]:
    """Show what would be run, and where; those commands as arguments for this machine."""
    by_name = {host.name: host for host in hosts}
    todo: list[tuple[str, ...]] = []
    for each in wanted:
        if each.finding.verdict != "PROBLEM" or each.finding.fix is None:
            output.status(f"{each.where}: {each.finding.verdict}, nothing to fix")
            continue
        output.status(f"{each.where}: {each.finding.fix.text}")
        for line in each.finding.fix.shown() or ["no command does this: it is yours to do"]:
            output.status(f"    {line}")
        host = by_name.get(each.where)
        commands = each.finding.fix.commands
        todo += [host.node.command_that_asks(*argv) if host else argv for argv in commands]
    return todo


def _agreed(output: Output) -> bool:
    if not sys.stdin.isatty():
        output.status("nothing was run: there is no terminal to ask at (--yes runs them)")
        return False
    print("run these? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")

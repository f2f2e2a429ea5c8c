"""``hy3 bench``: speed of an endpoint, its tokens counted as tokens."""

from __future__ import annotations

import json
import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from hy3.cli.endpoint import DEFAULT_URL, read_api_key
from hy3.cli.output import Output
from hy3.errors import InputError

_SEEDS = 10**6  # short enough to type, and more than there are words to begin at


def command(
    url: str = typer.Argument(DEFAULT_URL, help="An OpenAI-compatible endpoint."),
    concurrency: str = typer.Option("1,6", help="Numbers of concurrent streams, one run each."),
    prompt_tokens: int = typer.Option(256, min=8, help="Tokens of each prompt, about."),
    output_tokens: int = typer.Option(128, min=2, help="Tokens to generate per request."),
    requests: int = typer.Option(
        None, min=1, help="Requests per run.", show_default="twice the streams, at least 4"
    ),
    api: str = typer.Option("chat", help="chat, or completions (plain continuation)."),
    temperature: float = typer.Option(0.9, min=0.0, help="0 is greedy."),
    seed: int = typer.Option(
        None,
        min=0,
        help="Repeat the prompts of an earlier run.",
        show_default="a new one, printed",
    ),
    model: str = typer.Option(
        None, help="Name of the model to ask for.", show_default="the server's first"
    ),
    api_key_file: Path = typer.Option(
        None, help="File with the API key.", show_default="the variable HY3_API_KEY"
    ),
    timeout_s: float = typer.Option(600.0, min=1.0, help="Bound on one request, in seconds."),
    out: Path = typer.Option(None, help="Also write the JSON result to this file."),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Measure an endpoint: TTFT, TPOT, tok/s, draft acceptance."""
    import asyncio

    from hy3.bench.run import BenchPlan
    from hy3.report.table import bench_table

    output = Output(json_output, quiet)
    plan = BenchPlan(
        concurrency=parse_concurrency(concurrency),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        requests=requests,
        api=parse_api(api),
        temperature=temperature,
        model=model,
        seed=secrets.randbelow(_SEEDS) if seed is None else seed,
    )
    result = asyncio.run(_run(url, plan, read_api_key(api_key_file), timeout_s, output))
    if out is not None:
        out.write_text(json.dumps({"schema": "hy3.bench/1", **result}, indent=1) + "\n", "utf-8")
    table = bench_table(result)
    output.table(table.columns, table.rows, table.title)
    for note in table.notes:
        output.text(note)
    for warning in result["warnings"]:
        output.warning(warning)
    output.result("bench", result)
    if not result["ok"]:
        for run in result["runs"]:
            for reason, detail in run["failure_details"].items():
                output.warning(f"concurrency {run['concurrency']}: {reason}: {detail}")
        raise typer.Exit(1)


async def _run(
    url: str, plan: Any, api_key: str | None, timeout_s: float, output: Output
) -> dict[str, Any]:
    from hy3.bench.client import Endpoint
    from hy3.bench.run import run_bench
    from hy3.cli.env import gather_environment

    environment = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["hy3", *sys.argv[1:]]),
        **gather_environment(),
    }
    async with Endpoint(url, api_key, timeout_s) as endpoint:
        result = await run_bench(endpoint, plan, environment, output.status)
    return result.as_json()


def parse_concurrency(text: str) -> tuple[int, ...]:
    """``1,6`` -> (1, 6)."""
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or min(values) < 1:
        raise InputError(
            f"{text!r} is not a list of positive numbers",
            hint="for example --concurrency 1,6",
            where="--concurrency",
        )
    return values


def parse_api(text: str) -> str:
    """One of the two request formats."""
    if text not in ("chat", "completions"):
        raise InputError(f"unknown format {text!r}", hint="chat or completions", where="--api")
    return text

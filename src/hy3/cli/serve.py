"""``hy3 serve``: a checkpoint behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import typer

from hy3.cli.choices import check_choice
from hy3.cli.model_folder import model_folder
from hy3.cli.output import Output
from hy3.errors import EnvironmentFault, Hy3Error, InputError

if TYPE_CHECKING:
    from hy3.deploy.native_plan import NativeOptions, NativePlan

_KvChoice = Literal["auto", "bf16", "fp8"]


def command(
    model: str = typer.Argument(..., metavar="MODEL", help="Folder of the checkpoint."),
    host: str = typer.Option("127.0.0.1", help="Address; another one needs an API key."),
    port: int = typer.Option(8000, min=0, max=65535, help="0 takes a free one."),
    api_key_file: Path = typer.Option(
        None, help="File with one API key a line.", show_default="the variable HY3_API_KEY"
    ),
    served_model_name: str = typer.Option(
        None, help="Name that clients ask for.", show_default="the folder's name"
    ),
    max_context: int = typer.Option(
        None, min=16, help="Tokens of prompt and output.", show_default="the model's, if it fits"
    ),
    max_requests: int = typer.Option(8, min=1, help="Sequences computed at once."),
    drafts: str = typer.Option("auto", help="Draft depth: auto or a number, 0 for none."),
    kv_dtype: str = typer.Option("auto", help="KV cache: auto, bf16 or fp8."),
    reasoning_effort: str = typer.Option(
        None, help="For requests that name none.", show_default="the template's"
    ),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Serve a checkpoint with the native engine until interrupted."""
    from hy3.server.app import create_app
    from hy3.server.keys import check_address, load_keys
    from hy3.server.limits import Limits
    from hy3.server.run import DrainingServer, leave, listen, url_of
    from hy3.server.served import load_served_model

    output = Output(json_output, quiet)
    options = parse_options(max_context, max_requests, drafts, kv_dtype)
    keys = load_keys(api_key_file, os.environ)
    check_address(host, keys)
    folder = model_folder(model)
    served = load_served_model(folder, served_model_name, reasoning_effort)
    listener = listen(host, port)
    url = f"{url_of(listener)}/v1"
    _start_log(quiet)
    output.status(f"listening on {url}, loading {folder}")

    # OpenMP reads this when torch loads. Threads that spin while they wait take the cores from the
    # HTTP side, and on a busy machine from each other.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from hy3.deploy.native import NativeBackend  # torch takes seconds; the checks come first

    backend = NativeBackend(folder, options)
    limits = Limits(max_running=max_requests)

    def announce() -> None:
        assert backend.plan is not None
        _announce(output, backend.plan, served.name, url)

    app = create_app(backend, served, limits, keys)
    DrainingServer(app, backend, limits, announce).run(sockets=[listener])
    if backend.error is not None:
        raise _as_fault(backend.error)
    if backend.status == "loading":
        leave(0)


def _announce(output: Output, plan: NativePlan, name: str, url: str) -> None:
    for reason in plan.reasons:
        output.status(reason)
    output.text(f"ready: {name} at {url}")
    facts: dict[str, Any] = {"url": url, "model": name, "pid": os.getpid()}
    facts |= {"max_context": plan.engine.max_context, "max_requests": plan.engine.max_requests}
    facts |= {"drafts": plan.engine.draft_depth, "kv_dtype": plan.engine.kv_dtype}
    output.result("serve", facts | {"choices": list(plan.reasons)})


def parse_options(
    max_context: int | None, max_requests: int, drafts: str, kv_dtype: str
) -> NativeOptions:
    """The engine's options; raises InputError for a word that is none of theirs."""
    from hy3.deploy.native_plan import NativeOptions

    if drafts != "auto" and not (drafts.isascii() and drafts.isdigit()):
        raise InputError(f"unknown value {drafts!r}", "use auto, 0, 1, 2 ...", "--drafts")
    depth = None if drafts == "auto" else int(drafts)
    check_choice("--kv-dtype", kv_dtype, get_args(_KvChoice))
    return NativeOptions(max_context, max_requests, depth, cast(_KvChoice, kv_dtype))


def _start_log(quiet: bool) -> None:
    """One line per request on stderr; under ``--quiet`` only what went wrong."""
    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _as_fault(error: BaseException) -> Hy3Error:
    if isinstance(error, Hy3Error):
        return error
    return EnvironmentFault(
        f"the engine failed ({error!r})",
        hint="the log has the details; report them together with the output of hy3 env",
    )

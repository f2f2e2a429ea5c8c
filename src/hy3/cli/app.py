"""The command ``hy3``: registers the verbs and turns errors into exit codes.

Verb modules import only typer and light modules at their top, so ``hy3 --help`` stays fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from hy3 import __version__
from hy3.cli import (
    bench,
    chat,
    copy,
    demo,
    dequantize,
    doctor,
    env,
    inspect,
    plan,
    quantize,
    repair,
    requantize,
    serve,
    verify,
)
from hy3.cli.output import print_error
from hy3.cli.stdout import StdoutLostError, guarded_stdout, settle_stderr
from hy3.errors import EnvironmentFault, Hy3Error, InputError, Interrupted


def _interrupted() -> Interrupted:
    return Interrupted("interrupted", hint="run the same command again")


class _Verbs(TyperGroup):
    """Makes an error of ours of an interrupt; typer would exit without a word."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _interrupted() from error


app = typer.Typer(
    name="hy3",
    cls=_Verbs,
    help="From BF16 Hy3 weights to a verified, OpenAI-compatible endpoint on your hardware.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

VERBS: dict[str, Callable[..., None]] = {
    "demo": demo.command,
    "inspect": inspect.command,
    "quantize": quantize.command,
    "verify": verify.command,
    "dequantize": dequantize.command,
    "requantize": requantize.command,
    "repair": repair.command,
    "copy": copy.command,
    "plan": plan.command,
    "doctor": doctor.command,
    "serve": serve.command,
    "chat": chat.command,
    "bench": bench.command,
    "env": env.command,
}
for _name, _command in VERBS.items():
    app.command(_name)(_command)


def _print_version(value: bool) -> None:
    if value:
        print(f"hy3 {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False,
        "--version",
        help="Print the version and exit.",
        callback=_print_version,
        is_eager=True,
    ),
) -> None:
    """From BF16 Hy3 weights to a verified, OpenAI-compatible endpoint on your hardware."""


# Extra -> the top-level packages whose absence means that it was not installed.
_ENGINE_PACKAGES = frozenset(
    {"torch", "numba", "llguidance", "fastapi", "uvicorn", "pydantic", "prometheus_client"}
    | {"matplotlib", "yaml"}
)


def main() -> None:
    """Run the command line; never lets a traceback of an expected error through."""
    arguments = sys.argv[1:] or ["--help"]
    try:
        with guarded_stdout():
            code = _run(arguments, "--json" in arguments)
    except StdoutLostError as lost:
        if lost.fault is not None:
            print_error(lost.fault, as_json=False)
        code = lost.exit_code
    settle_stderr()
    sys.exit(code)


def _run(arguments: list[str], as_json: bool) -> int:
    """The exit code of one command; its errors are printed."""
    error: Hy3Error
    try:
        return app(arguments, prog_name="hy3", standalone_mode=False) or 0
    except Hy3Error as known:
        error = known
    except typer.TyperException as usage:
        error = _usage_fault(usage)
    except (KeyboardInterrupt, typer.Abort):  # before a verb has begun
        error = _interrupted()
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in _ENGINE_PACKAGES:
            raise
        error = EnvironmentFault(
            f"the Python package {package} is not installed",
            hint="install the engine extra: pip install 'hy3[engine]'",
        )
    except OSError as failed:
        if not isinstance(failed.filename, str | bytes | os.PathLike):
            raise
        error = EnvironmentFault(
            f"cannot be used ({failed.strerror})",
            hint="check the path and its permissions",
            where=os.fsdecode(failed.filename),
        )
    print_error(error, as_json)
    return error.exit_code


def _usage_fault(error: typer.TyperException) -> InputError:
    """A bad option or argument, in the form of every other error."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "hy3"
    return InputError(
        error.format_message().rstrip("."), hint=f"{command} --help says what it takes"
    )

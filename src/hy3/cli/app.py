"""The command ``hy3``: registers the verbs and turns errors into exit codes.

Verb modules import only typer and light modules at their top, so ``hy3 --help`` stays fast.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from hy3 import __version__
from hy3.cli import (
    bench,
    chat,
    demo,
    dequantize,
    env,
    inspect,
    plan,
    quantize,
    repair,
    serve,
    verify,
)
from hy3.cli.output import print_error
from hy3.errors import EnvironmentFault, Hy3Error, InputError, Interrupted


class _Verbs(TyperGroup):
    """Makes an error of ours of an interrupt; typer would exit without a word."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted", hint="run the same command again") from error


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
    "repair": repair.command,
    "plan": plan.command,
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
    as_json = "--json" in arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files may be bytes that are no text; a result must not fail over showing one.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        sys.exit(app(arguments, prog_name="hy3", standalone_mode=False))
    except Hy3Error as error:
        print_error(error, as_json)
        sys.exit(error.exit_code)
    except typer.TyperException as error:
        fault = _usage_fault(error)
        print_error(fault, as_json)
        sys.exit(fault.exit_code)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _ENGINE_PACKAGES:
            raise
        missing = EnvironmentFault(
            f"the Python package {package} is not installed",
            hint="install the engine extra: pip install 'hy3[engine]'",
        )
        print_error(missing, as_json)
        sys.exit(missing.exit_code)


def _usage_fault(error: typer.TyperException) -> InputError:
    """A bad option or argument, in the form of every other error."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "hy3"
    return InputError(
        error.format_message().rstrip("."), hint=f"{command} --help says what it takes"
    )


if __name__ == "__main__":
    main()

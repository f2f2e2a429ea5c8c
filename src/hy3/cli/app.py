"""The command ``hy3``: registers the verbs and turns errors into exit codes.

Verb modules import only typer and light modules at their top, so ``hy3 --help`` stays fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from hy3 import __version__
from hy3.cli import bench, chat, demo, dequantize, env, inspect, quantize, serve, verify
from hy3.cli.output import print_error
from hy3.errors import EnvironmentFault, Hy3Error

app = typer.Typer(
    name="hy3",
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
)


def main() -> None:
    """Run the command line; never lets a traceback of an expected error through."""
    as_json = "--json" in sys.argv[1:]
    try:
        app()
    except Hy3Error as error:
        print_error(error, as_json)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _ENGINE_PACKAGES:
            raise
        fault = EnvironmentFault(
            f"the Python package {package} is not installed",
            hint="install the engine extra: pip install 'hy3[engine]'",
        )
        print_error(fault, as_json)
        sys.exit(fault.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()

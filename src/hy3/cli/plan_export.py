"""Launch files of a plan: what they need is asked before anything is planned, then they are made,
and written over nothing that differs from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hy3.cli.choices import check_choice
from hy3.cli.model_folder import expand_home
from hy3.errors import InputError

if TYPE_CHECKING:
    from hy3.plan.planner import LaunchPlan

_DEFAULT_FOLDER = Path("hy3-launch")


@dataclass(frozen=True)
class Export:
    """What was asked for."""

    kind: str  # "compose" or "systemd"
    folder: Path
    model: str  # the checkpoint's path on the nodes
    nodes: tuple[str, ...]


def parse_export(
    kind: str | None,
    folder: Path | None,
    model: str,
    model_path: str | None,
    nodes: str | None,
    recipe: str | None,
) -> Export | None:
    """The options that belong to ``--export``; None when no file is asked for.

    Raises:
        InputError: one of them without it, or what no launch file can hold.
    """
    from hy3.nodes.node import parse_names

    check_choice("--export", kind, ("compose", "systemd"))
    if kind is None:
        given = {"--export-to": folder, "--model-path": model_path, "--nodes": nodes}
        for option, value in given.items():
            if value is not None:
                raise InputError(
                    "says something about launch files, and none are asked for",
                    hint="add --export compose or --export systemd, or leave it out",
                    where=option,
                )
        return None
    names = parse_names(nodes) if nodes is not None else ()
    path = _path_on_nodes(model, model_path, recipe)
    return Export(kind, folder or _DEFAULT_FOLDER, path, names)


def launch_files(plan: LaunchPlan, export: Export) -> dict[Path, str]:
    """Path -> text of the launch files; InputError for a file that is there and says otherwise."""
    from hy3.deploy.engine_command import Launch
    from hy3.deploy.export import export_compose, export_systemd

    launch = Launch(export.model, host="127.0.0.1", port=8000, nodes=export.nodes)
    make = export_compose if export.kind == "compose" else export_systemd
    texts = make(plan.settings, plan.hardware, plan.memory.utilization, launch)
    files = {export.folder / name: text for name, text in texts.items()}
    for path, text in files.items():
        if path.exists() and not (path.is_file() and path.read_bytes() == text.encode()):
            raise InputError(
                "is there already, and is not what would be written",
                hint="move it away, or name another folder with --export-to",
                where=str(path),
            )
    return files


def _path_on_nodes(model: str, model_path: str | None, recipe: str | None) -> str:
    """Absolute, and of characters that units and Compose files can hold."""
    if model_path is None and (recipe is not None or not expand_home(model).exists()):
        raise InputError(
            "launch files name the checkpoint's folder on the nodes, which MODEL is not",
            hint="say where it will lie there: --model-path /models/NAME",
            where="--export",
        )
    path = str(expand_home(model if model_path is None else model_path).absolute())
    if not path.isprintable():
        raise InputError(
            f"no launch file can hold the path {path!r}",
            hint="name a path of printable UTF-8 characters",
            where="MODEL" if model_path is None else "--model-path",
        )
    return path

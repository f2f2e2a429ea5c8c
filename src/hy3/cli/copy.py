"""``hy3 copy``: a finished checkpoint to other nodes, resumable, proved on arrival."""

from __future__ import annotations

from pathlib import Path

import typer

from hy3.cli.output import Output
from hy3.cli.termination import terminable
from hy3.errors import InputError

_RESUMES = "run it again to go on where it stopped"


def command(
    folder: str = typer.Argument(..., metavar="OUT", help="Local folder of a finished checkpoint."),
    nodes: str = typer.Option(..., help="Nodes as ssh knows them, by their fabric address: b,c."),
    to: str | None = typer.Option(None, help="Folder there.", show_default="the same path"),
    streams: int = typer.Option(4, min=1, max=16, help="Files sent at a time."),
    ssh: str = typer.Option("ssh", help="The ssh program with its options."),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Send a checkpoint to other nodes; hashes are checked there.

    It goes over the fabric, with rsync.
    """
    from hy3.cli.model_folder import model_folder
    from hy3.cli.words import command_words
    from hy3.deploy.copy import copy, files_to_send
    from hy3.nodes.node import Node, parse_names
    from hy3.units import format_bytes, format_seconds

    output = Output(json_output, quiet)
    source = Path(model_folder(folder)).resolve()
    names, program = parse_names(nodes), command_words(ssh, "--ssh")
    target = _folder_there(to, source)
    total = sum(each.size_bytes for each in files_to_send(source).values())
    results = []
    for name in names:
        node = Node(name, program)
        with terminable(_RESUMES), output.progress(f"copy to {name}", total) as advance:
            done = copy(source, node, target, streams, advance)
        rate = format_bytes(round(done.sent_bytes / max(done.seconds, 1e-3)))
        output.text(
            f"{name}: {done.files} files, {format_bytes(done.nbytes)}, "
            f"{format_bytes(done.sent_bytes)} sent in {format_seconds(done.seconds)} "
            f"({rate}/s); every hash is right there"
        )
        results.append(vars(done))
    output.result("copy", {"nodes": results})


def _folder_there(to: str | None, source: Path) -> str:
    """Where it goes; no shell of the node reads the path, so that nothing in it is expanded."""
    if to is None:
        return str(source)
    if not to or to.startswith("~"):
        raise InputError(
            f"{to!r} is taken as it is, and is no folder",
            hint="name the whole path there, as /models/NAME",
            where="--to",
        )
    return to

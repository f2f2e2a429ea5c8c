"""The options of ``hy3 plan`` that shape a launch, as typer reads them."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import typer

from hy3.errors import InputError

# Those of devices.toml, which is not read for every help; a test compares them.
_DEVICES = "gb10, rtx-3090, rtx-4090, rtx-5090, rtx-pro-6000, l40s, a100, h100, h200, b200, b300"
_MOST = 100_000  # of anything that is counted: beyond it there is nothing to plan

Model = Annotated[str, typer.Argument(help="Folder of a checkpoint, or hf://org/name.")]
Hardware = Annotated[
    str,
    typer.Option(
        help="COUNTxDEVICE, as 2xgb10 or h200; MACHINESxDEVICESxDEVICE, as 2x4xh100; or auto (this "
        f"machine). Devices: {_DEVICES}."
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Longest sequence in tokens.",
        show_default="32768, or less if the model knows less",
    ),
]
Concurrency = Annotated[int, typer.Option(min=1, max=_MOST, help="Sequences at a time.")]
Engine = Annotated[str | None, typer.Option(help="vllm, sglang or native.", show_default="vllm")]
Tp = Annotated[
    int | None,
    typer.Option(
        min=1, max=_MOST, help="Tensor parallelism.", show_default="the fastest that fits"
    ),
]
Pp = Annotated[int, typer.Option(min=1, max=_MOST, help="Pipeline parallelism: stages of layers.")]
Ep = Annotated[
    bool, typer.Option("--ep", help="Expert parallelism: whole experts on each tensor rank.")
]
Drafts = Annotated[
    int | None, typer.Option(min=0, help="Draft depth.", show_default="1 where it can")
]
Acceptance = Annotated[
    str | None,
    typer.Option(
        help="Share of steps that accept draft 1, 2, ...: per_position of hy3 bench.",
        show_default="what was published for Hy3",
    ),
]
KvDtype = Annotated[str | None, typer.Option(help="bf16 or fp8.", show_default="bf16")]
Graphs = Annotated[
    bool | None,
    typer.Option("--graphs/--eager", help="CUDA graphs.", show_default="what was measured best"),
]
Utilization = Annotated[
    float | None,
    typer.Option(
        min=0.05, max=1.0, help="Share of memory to use.", show_default="from what is free"
    ),
]
FreeGib = Annotated[float | None, typer.Option(min=0.1, help="Free memory of a device.")]
SequenceTokens = Annotated[
    int | None,
    typer.Option(
        min=1, help="Tokens in each sequence's cache, for the speed.", show_default="1024"
    ),
]


def parse_acceptance(text: str | None) -> tuple[float, ...] | None:
    """``0.69,0.2`` -> (0.69, 0.29): of each draft, given that those before it were accepted.

    Raises:
        InputError: what cannot be shares of steps, each a part of the one before.
    """
    if text is None:
        return None
    try:
        shares = [1.0, *map(float, text.split(","))]
    except ValueError:
        shares = []
    if not shares or not all(0 <= later <= earlier for earlier, later in pairwise(shares)):
        raise InputError(
            f"{text!r} are no shares of steps that accept draft 1, 2, ...",
            hint="none is above the one before: for example --acceptance 0.69,0.2",
            where="--acceptance",
        )
    return tuple(later / earlier if earlier else 0.0 for earlier, later in pairwise(shares))

"""The options that ``hy3 quantize`` and ``hy3 requantize`` share, as typer reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hy3.cli.choices import check_choice

Out = Annotated[Path, typer.Argument(help="Folder to write; new, empty or of an interrupted run.")]
Recipe = Annotated[
    str,
    typer.Option(
        help="What becomes what: all-nvfp4, fp8, experts-nvfp4, experts-nvfp4-attn-fp8, or a path "
        "that ends in .toml."
    ),
]
Layout = Annotated[str, typer.Option("--format", help="Or modelopt.")]
Scales = Annotated[str, typer.Option(help="Scale rule of NVFP4: max, four-over-six or exact.")]
Fp8Activations = Annotated[
    str | None,
    typer.Option(
        help="Activations of FP8 linears: none (they stay BF16) or dynamic (FP8 in blocks).",
        show_default="the recipe's",
    ),
]
LmHead = Annotated[
    str | None,
    typer.Option(help="The output head: bf16 or fp8 (vLLM only).", show_default="the recipe's"),
]
Mtp = Annotated[str, typer.Option(help="The MTP layer: same (as the others) or bf16.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Threads, each with a shard of its own.", show_default="cores"),
]
Device = Annotated[str, typer.Option(help="Where scales are searched: auto, cpu or cuda.")]
DiscardSource = Annotated[
    bool,
    typer.Option(
        "--discard-source",
        help="Of a model on a hub: keep no shard once all in it is durable in OUT.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print plan, time and room needed; keep nothing.")
]


def check_words(
    scales: str, mtp: str, layout: str, fp8_activations: str | None, lm_head: str | None
) -> None:
    """InputError for a word that is none of its option's."""
    check_choice("--scales", scales, ("max", "four-over-six", "exact"))
    check_choice("--mtp", mtp, ("same", "bf16"))
    check_choice("--format", layout, ("compressed-tensors", "modelopt"))
    check_choice("--fp8-activations", fp8_activations, ("none", "dynamic"))
    check_choice("--lm-head", lm_head, ("bf16", "fp8"))

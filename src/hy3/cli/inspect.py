"""``hy3 inspect``: what a checkpoint holds, read from its headers alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from hy3.cli.output import Output

if TYPE_CHECKING:
    from hy3.checkpoint.census import Census


def command(
    model: str = typer.Argument(..., help="Folder of the checkpoint, or hf://org/name."),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Show what a checkpoint holds, and what it lacks.

    Tensor classes, sizes, scheme, MTP layer, and missing or unexpected tensors.
    """
    from hy3.chat.markers import read_marker_suffix
    from hy3.checkpoint.census import take_census
    from hy3.checkpoint.manifest import read_manifest
    from hy3.checkpoint.model_config import load_config
    from hy3.cli.collector import collector_at_rest
    from hy3.cli.model_folder import open_model

    output = Output(json_output, quiet)
    opened = open_model(model, output)
    config = load_config(opened.folder)
    with collector_at_rest():
        checkpoint = opened.checkpoint()
        census = take_census(checkpoint, config)
    manifest = read_manifest(opened.folder)
    markers = read_marker_suffix(opened.folder)
    for warning in markers.warnings:
        output.warning(warning)
    result = {
        "model": opened.name,
        "revision": opened.origin.revision if opened.origin else None,
        "scheme": census.scheme,
        "recipe": manifest.parameters.recipe if manifest else None,
        "forms": census.quantized_counts(),
        "layers": config.num_layers,
        "mtp": _mtp(census),
        "marker_suffix": markers.suffix,
        "totals": {
            "tensors": len(checkpoint.tensors),
            "bytes": checkpoint.total_bytes,
            "shards": len(checkpoint.headers),
            "parameters": census.weight_count,
        },
        "classes": [
            {
                "name": row.name,
                "role": row.role,
                "dtype": row.dtype,
                "tensors": row.tensors,
                "bytes": row.nbytes,
            }
            for row in census.classes
        ],
        "missing": list(census.missing),
        "unexpected": list(census.unexpected),
        "mismatched": [asdict(mismatch) for mismatch in census.mismatched],
    }
    _print(output, result)
    output.result("inspect", result)


def _mtp(census: Census) -> dict[str, Any] | None:
    if census.mtp is None:
        return None
    return {
        "tensors": census.mtp.tensors,
        "bytes": census.mtp.nbytes,
        "experts": census.mtp.experts,
    }


def _print(output: Output, result: dict[str, Any]) -> None:
    from hy3.units import format_bytes

    totals, mtp, suffix = result["totals"], result["mtp"], result["marker_suffix"]
    shards = "1 shard" if totals["shards"] == 1 else f"{totals['shards']} shards"
    output.text(
        f"{result['model']}: {result['scheme']}, {totals['parameters'] / 1e9:.2f} B parameters, "
        f"{totals['tensors']} tensors in {shards}, {format_bytes(totals['bytes'])}"
    )
    parts = [f"{result['layers']} layers"]
    if mtp is None:
        parts.append("no MTP layer")
    else:
        parts.append(f"MTP layer of {format_bytes(mtp['bytes'])} with {mtp['experts']} experts")
    parts.append("no markers found" if suffix is None else f"marker suffix {suffix!r}")
    output.text(", ".join(parts))
    if result["forms"]:
        counts = [f"{kind} {form} ({count})" for kind, form, count in result["forms"]]
        recipe = f"recipe {result['recipe']}: " if result["recipe"] else "quantized: "
        output.text(recipe + ", ".join(counts))
    rows = [
        (row["name"], row["role"], row["dtype"], str(row["tensors"]), format_bytes(row["bytes"]))
        for row in result["classes"]
    ]
    output.table(("class", "holds", "dtype", "tensors", "bytes"), rows)
    mismatches = [
        f"{each['name']} (must be {each['expected']}, is {each['found']})"
        for each in result["mismatched"]
    ]
    for title, names in (
        ("missing", result["missing"]),
        ("unexpected", _explain_names(result["unexpected"])),
        ("not as expected", mismatches),
    ):
        if names:
            output.names(f"{title}: {len(names)}", names)


def _explain_names(names: list[str]) -> list[str]:
    from hy3.checkpoint.names import inner_name

    inner = {name: inner_name(name) for name in names}
    return [f"{name} (engines want {inner[name]})" if inner[name] else name for name in names]

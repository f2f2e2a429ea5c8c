"""The model card of a quantized checkpoint: what became what, how exact, and from which bytes."""

from __future__ import annotations

from hy3.checkpoint.file_hash import FileHash
from hy3.quantize.plan import Plan
from hy3.units import format_bytes

CARD_NAME = "README.md"
# class -> sums of: squared error, the same under rule max, squared weight
ErrorSums = dict[str, tuple[float, float, float]]


def write_card(plan: Plan, errors: ErrorSums, source: dict[str, FileHash]) -> bytes:
    """README.md; the same plan, errors and source give the same bytes."""
    parameters = plan.parameters
    sections = [
        "# NVFP4 weights of a `hy_v3` checkpoint",
        f"Made by `hy3` {parameters.hy3_version} from BF16: recipe `{parameters.recipe}`, scale "
        f"rule `{parameters.scales}`, MTP experts "
        f"{'in BF16' if parameters.mtp == 'bf16' else 'treated as the others'}. "
        f"{format_bytes(plan.source_bytes)} became {format_bytes(plan.output_bytes)}. Weights "
        "only: activations stay in BF16 (W4A16). Tensor scales are powers of two, so every "
        "weight is exact in BF16 once decoded.",
        "## What became what",
        _table(
            ("class", "stored as", "tensors", "from", "to"),
            [
                (
                    line.label,
                    line.format,
                    str(line.tensors),
                    format_bytes(line.source_bytes),
                    format_bytes(line.output_bytes),
                )
                for line in plan.lines()
            ],
        ),
        "## Error of the quantized weights",
        "Sum of squared errors relative to the sum of squared weights; beside it the plain rule "
        "`max` under the same tensor scales.",
        _table(("class", parameters.scales, "max", "change"), _error_rows(errors)),
        "## Source",
        "SHA-256 of the files that this was made from. `hy3_manifest.json` holds those of this "
        "folder; `hy3 verify` checks both.",
        _table(("file", "SHA-256"), [(name, each.sha256) for name, each in sorted(source.items())]),
    ]
    return ("\n\n".join(sections) + "\n").encode()


def _error_rows(errors: ErrorSums) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, (error, under_max, weight) in sorted(errors.items()):
        relative = [each / weight if weight else 0.0 for each in (error, under_max)]
        change = f"{100 * (error / under_max - 1):+.1f} %" if under_max else "0.0 %"
        rows.append((name, f"{relative[0]:.5f}", f"{relative[1]:.5f}", change))
    return rows


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

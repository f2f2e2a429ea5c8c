"""The model card of a quantized checkpoint: what became what, how exact, and from which bytes."""

from __future__ import annotations

from hy3.checkpoint.file_hash import FileHash
from hy3.quantize.plan import Plan
from hy3.quantize.stats import StatsByKey, stats_by_class
from hy3.units import format_bytes

CARD_NAME = "README.md"


def write_card(plan: Plan, stats: StatsByKey, source: dict[str, FileHash]) -> bytes:
    """README.md; the same plan, statistics and source give the same bytes."""
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
        _table(("class", parameters.scales, "max", "change"), _error_rows(stats)),
        "## Source",
        "SHA-256 of the files that this was made from. `hy3_manifest.json` holds those of this "
        "folder; `hy3 verify` checks both.",
        _table(("file", "SHA-256"), [(name, each.sha256) for name, each in sorted(source.items())]),
    ]
    return ("\n\n".join(sections) + "\n").encode()


def _error_rows(stats: StatsByKey) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, each in sorted(stats_by_class(stats).items()):
        ratio = each.error / each.max_error if each.max_error else 1.0
        relative = (f"{each.relative_error:.5f}", f"{each.relative_max_error:.5f}")
        rows.append((name, *relative, f"{100 * (ratio - 1):+.1f} %"))
    return rows


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""Writes the tables of docs/doctor.md: the checks, the engines, and the problems they answer.

python tools/doctor_tables.py            # rewrites the parts between their marks
python tools/doctor_tables.py --check    # exits 1 if the page says anything else
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from hy3.doctor.check import Check
from hy3.doctor.engine_matrix import features, nccl_floor
from hy3.doctor.links import load_links
from hy3.doctor.registry import (
    BETWEEN_NODES,
    DRY_LOAD_CHECKS,
    FABRIC_CHECKS,
    HOST_CHECKS,
    LOAD_CHECKS,
    MODEL_CHECKS,
    WATCH_CHECKS,
)
from marked import rewrite, written

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "doctor.md"
PROBLEMS = ROOT / "tools" / "doctor_problems.toml"


def all_checks() -> list[tuple[str, Check[object]]]:
    """Every check, with what it looks at."""
    groups: list[tuple[str, tuple[Check, ...]]] = [
        ("a machine", HOST_CHECKS),
        ("a machine, `--watch`", WATCH_CHECKS),
        ("a machine, `--gpu-load`", LOAD_CHECKS),
        ("between machines", BETWEEN_NODES),
        ("the network, `--fabric`", FABRIC_CHECKS),
        ("a checkpoint", MODEL_CHECKS),
        ("a checkpoint, `--dry-load`", DRY_LOAD_CHECKS),
    ]
    return [(where, check) for where, checks in groups for check in checks]


def problems() -> dict[str, tuple[str, str, list[str], str]]:
    """id -> (problem, kind of answer, names, remark)."""
    return {name: tuple(row) for name, row in tomllib.loads(PROBLEMS.read_text("utf-8")).items()}


def checks_table() -> Iterator[str]:
    """One row for each check."""
    yield "| check | looks at | severity | problem | report |"
    yield "|---|---|---|---|---|"
    for where, check in all_checks():
        link = f"[report]({check.source})"
        yield f"| `{check.id}` | {where} | {check.severity} | {check.title} | {link} |"


def engines_table() -> Iterator[str]:
    """One row for each line of engines.toml."""
    yield "| id | problem where it is missing | matters to | vLLM | SGLang | report |"
    yield "|---|---|---|---|---|---|"
    for each in features():
        cells = [
            ", ".join(
                f"{version} {'fine' if there else 'missing'}"
                for version, there in each.versions.get(engine, {}).items()
            )
            or "-"
            for engine in ("vllm", "sglang")
        ]
        link = f"[report]({each.source})"
        yield f"| `{each.id}` | {each.title} | {each.needs} | {' | '.join(cells)} | {link} |"
    needs = f"NCCL below {nccl_floor()}"
    yield f"| `nccl-too-old` | graphs across machines deadlock | {needs} | - | - | |"


def links_table() -> Iterator[str]:
    """One row for each way that data can go."""
    yield "| way | 8 kB: usual, worst | 64 MB: usual, worst | sources |"
    yield "|---|---|---|---|"
    for each in load_links():
        small = f"{each.usual_small_us:g}, {each.worst_small_us:g} us"
        large = f"{each.usual_large_gb_s:g}, {each.worst_large_gb_s:g} GB/s"
        sources = f"8 kB: {each.sources['small']}; 64 MB: {each.sources['large']}"
        yield f"| {each.label} | {small} | {large} | {sources} |"


def problems_table(hy3: bool) -> Iterator[str]:
    """One row for each problem, of Hy3 itself or of any model."""
    yield "| | problem | answered by | |"
    yield "|---|---|---|---|"
    for name, (problem, kind, names, remark) in problems().items():
        if name.startswith("A") != hy3:
            continue
        shown = "<br>".join(f"`{each}`" for each in names)
        yield f"| {name} | {problem} | {kind}: {shown} | {remark} |"


def parts() -> dict[str, str]:
    """The tables by their marks."""
    tables = {
        "checks": checks_table(),
        "links": links_table(),
        "engines": engines_table(),
        "hy3": problems_table(True),
        "any": problems_table(False),
    }
    return {name: "\n".join(table) for name, table in tables.items()}


def page() -> str:
    """The page with its tables written anew."""
    return written(PAGE.read_text(encoding="utf-8"), parts())


def main() -> int:
    """Write, or compare."""
    return rewrite(PAGE, parts())


if __name__ == "__main__":
    sys.exit(main())

"""Writes the tables "Beside other quantizers" of docs/quantize.md from their result files.

python tools/peers_table.py            # rewrites the part of docs/quantize.md between its marks
python tools/peers_table.py --check    # exits 1 if the page says anything else
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marked import rewrite

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "quantize.md"
RESULTS = ROOT / "benchmarks" / "results"
TOOLS = {"hy3": "hy3", "llmcompressor": "llm-compressor", "modelopt": "ModelOpt"}
HEAD = (
    "| checkpoint | tool and rule | CPU s | wall s | peak GB: resident (anonymous) "
    "| error x 1e-3 | as served | gate = up | MTP kept |"
)


def tables() -> Iterator[str]:
    """One table for each machine that has a result, marks left out."""
    for name in ("peers_quantize_cpu", "peers_quantize_gpu"):
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        document = json.loads(path.read_text(encoding="utf-8"))
        hardware = document["hardware"]
        machine = f"{hardware['cores']} cores of {hardware['processor']}"
        machine = f"{hardware['gpu']}, {machine}" if "gpu" in hardware else machine
        yield f"{machine} ([JSON](../benchmarks/results/{name}.json)):"
        yield "\n".join([HEAD, "|---" * (HEAD.count("|") - 1) + "|", *map(line, document["rows"])])


def line(row: dict[str, Any]) -> str:
    """One run in Markdown; a failed one with its message."""
    name = f"| {row['size']} | {TOOLS[row['tool']]} `{row['preset']}` | "
    if "error" in row:
        return f"{name}failed: {row['error']} | | | | | | |"
    memory = f"{row['peak_resident_bytes'] / 1e9:.2f} ({row['peak_anonymous_bytes'] / 1e9:.2f})"
    if "peak_gpu_bytes" in row:
        memory += f" + {row['peak_gpu_bytes'] / 1e9:.2f} on the GPU"
    own, served = (f"{row[key] * 1e3:.3f}" for key in ("relative_error", "served_relative_error"))
    return name + " | ".join(
        [
            f"{row['cpu_s']:.1f}",
            f"{min(row['wall_s_of_runs']):.1f}",
            memory,
            own,
            served if served == own else f"**{served}**",
            f"{row['pairs_agreeing']} of {row['pairs']}",
            f"{row['mtp_kept']} of {row['mtp_tensors']} |",
        ]
    )


def main() -> int:
    """Rewrite or check."""
    return rewrite(PAGE, {"peers": "\n" + "\n\n".join(tables()) + "\n"})


if __name__ == "__main__":
    sys.exit(main())

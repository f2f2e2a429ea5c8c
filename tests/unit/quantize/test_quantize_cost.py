"""Two files beside their original: each class as it came and as it was made."""

from __future__ import annotations

from pathlib import Path

from hy3.quantize.cost import compare_costs
from hy3.quantize.verify import verify
from support.quantized import make_quantized
from support.quantizing import no_progress


def test_classes_of_either_file(source: Path, sound: Path, tmp_path: Path) -> None:
    came = make_quantized(source, tmp_path / "came", "max", "bf16")
    before, after = (verify(each, source).error_by_class for each in (came, sound))
    costs = compare_costs(came, sound, source, no_progress)
    assert [(cost.name, cost.before, cost.after) for cost in costs] == [
        ("routed_expert", before["routed_expert"], after["routed_expert"]),
        ("routed_expert (MTP)", None, after["routed_expert (MTP)"]),
    ]
    assert costs[0].before.relative > costs[0].after.relative > 0

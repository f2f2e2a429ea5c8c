"""Merging rows of peers_quantize.py into an earlier result, and the checkpoint that it makes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

from hy3.checkpoint.model_config import parse_config  # noqa: E402
from hy3.checkpoint.names import expected_tensors, is_routed_expert  # noqa: E402
from peers_checkpoint import expert_weight, raw_config  # noqa: E402
from peers_quantize import earlier, merged  # noqa: E402


def row(tool, preset, **more):
    return {"size": "S", "tool": tool, "preset": preset, **more}


def test_new_rows_replace_those_of_their_name():
    old = {
        "checkpoints": {"S": {"sha256": "a"}},
        "rows": [row("modelopt", "max", cpu_s=1), row("hy3", "exact", cpu_s=2)],
    }
    slower = row("hy3", "exact", cpu_s=9)
    found = merged(old, {"L": {"sha256": "b"}}, [slower])
    assert found["rows"] == [slower, row("modelopt", "max", cpu_s=1)]
    assert found["checkpoints"].keys() == {"S", "L"}


def test_a_busy_hour_does_not_count_against_a_peer():
    old = {"checkpoints": {}, "rows": [row("modelopt", "max", versions="1", cpu_s=5)]}
    for version, cpu_s, kept in (("1", 9, 5), ("1", 4, 4), ("2", 9, 9)):
        new = row("modelopt", "max", versions=version, cpu_s=cpu_s)
        assert merged(old, {}, [new])["rows"][0]["cpu_s"] == kept


def test_another_checkpoint_or_machine_is_refused(tmp_path):
    old = {"checkpoints": {"S": {"sha256": "a"}}, "rows": []}
    with pytest.raises(SystemExit, match="another checkpoint S"):
        merged(old, {"S": {"sha256": "b"}}, [])
    path = tmp_path / "old.json"
    assert earlier(path, "this")["rows"] == []
    path.write_text(json.dumps({"hardware": {"processor": "that"}, **old}))
    assert earlier(path, "that")["checkpoints"] == old["checkpoints"]
    with pytest.raises(SystemExit, match="another machine"):
        earlier(path, "this")


@pytest.mark.parametrize(("size", "gigabytes", "experts"), [("S", 0.956, 3), ("L", 1.976, 30)])
def test_the_checkpoints_are_of_the_stated_sizes(size, gigabytes, experts):
    specs = expected_tensors(parse_config(raw_config(size)))
    assert round(sum(spec.nbytes for spec in specs.values()) / 1e9, 3) == gigabytes
    assert sum(map(is_routed_expert, specs)) == 3 * experts


def test_an_expert_depends_on_its_name_alone():
    names = [f"model.layers.1.mlp.experts.{i}.up_proj.weight" for i in (0, 1)]
    first, second = (expert_weight(name, (64, 1024)) for name in names)
    assert not first[:8].any() and second[:8].any() and first[8:].any()
    assert np.array_equal(second, expert_weight(names[1], (64, 1024)))

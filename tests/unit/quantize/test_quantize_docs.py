"""docs/formats.md says what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hy3.checkpoint.forms import FORMAT_NAMES, FP8_BLOCK_INV, FP8_TENSOR, parts_of
from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.model_config import parse_config
from hy3.checkpoint.names import expected_tensors
from hy3.quantize.verify import verify
from support.real_models import HY3
from support.recipes import written_specs

TEXT = (Path(__file__).parents[3] / "docs" / "formats.md").read_text(encoding="utf-8")


def test_every_check_is_explained_and_no_other(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(HY3))
    ids = [check.id for check in verify(tmp_path).checks]
    section = TEXT.partition("## What verify proves")[2]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == ids


def test_sizes():
    config = parse_config(HY3)
    for specs in (expected_tensors(config), written_specs(config)):
        total = sum(spec.nbytes for spec in specs.values())
        assert f"| {len(specs):,} | {total:,} |" in TEXT


def test_names():
    spec = TensorSpec("P.weight", "BF16", (256, 256))
    written = [form for form in FORMAT_NAMES if form not in (FP8_TENSOR, FP8_BLOCK_INV)]
    names = dict.fromkeys(part.name for form in written for part in parts_of(spec, form))
    assert set(re.findall(r"^\| `(P\.\w+)` \|", TEXT, re.MULTILINE)) == set(names)

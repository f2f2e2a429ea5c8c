"""docs/formats.md says what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hy3.checkpoint.model_config import parse_config
from hy3.checkpoint.names import PACKED_SUFFIXES, expected_packed_tensors, expected_tensors
from hy3.quantize.verify import verify
from support.real_models import HY3

TEXT = (Path(__file__).parents[3] / "docs" / "formats.md").read_text(encoding="utf-8")


def test_every_check_is_explained_and_no_other(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(HY3))
    ids = [check.id for check in verify(tmp_path).checks]
    section = TEXT.partition("## What verify proves")[2]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == ids


def test_sizes():
    config = parse_config(HY3)
    for specs in (expected_tensors(config), expected_packed_tensors(config)):
        total = sum(spec.nbytes for spec in specs.values())
        assert f"| {len(specs):,} | {total:,} |" in TEXT


def test_names():
    assert re.findall(r"^\| `P\.(\w+)` \|", TEXT, re.MULTILINE) == list(PACKED_SUFFIXES)

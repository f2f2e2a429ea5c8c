"""Sizes and bytes per token, against plain arithmetic on the published dimensions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hy3.checkpoint.model_config import parse_config
from hy3.quantize.sizes import fits_card, kv_bytes, needed_bytes, size_of
from support.real_models import HY3, HY_MT2
from support.recipes import VARIANTS, assigned, written_specs

CONFIG = parse_config(HY3)
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_file_is_the_sum_of_what_is_written(variant: str) -> None:
    size = size_of(CONFIG, assigned(CONFIG, variant))
    assert size.file_bytes == sum(spec.nbytes for spec in written_specs(CONFIG, variant).values())


def test_bytes_per_token_of_hy3() -> None:
    hidden, expert = 4096, 3 * 1536 * 4096
    attention = 2 * 8192 * hidden + 2 * 1024 * hidden
    experts = 79 * 8 * (expert // 2 + expert // 16 + 3 * 4)
    size = size_of(CONFIG, assigned(CONFIG))
    found = size.token_bytes_by_class
    assert found["routed_expert"] == experts
    assert found["attention"] == 80 * attention * 2
    assert found["shared_expert"] == 79 * expert * 2
    assert found["lm_head"] == 120832 * hidden * 2 and found["embedding"] == hidden * 2
    # 71 % of what is read is BF16 that is no expert.
    assert 1 - experts / size.token_bytes == pytest.approx(0.71, abs=0.01)
    assert "mtp_projection" not in found
    halved = size_of(CONFIG, assigned(CONFIG, "attn-fp8")).token_bytes_by_class
    assert halved["attention"] == 80 * (attention + 4 * (8192 + 2 * 1024 + hidden))


def test_which_cards_hold_hy_mt2() -> None:
    config = parse_config(HY_MT2)
    assert kv_bytes(config, 16384) == 16384 * 48 * 2 * 4 * 128 * 2
    fits = {}
    for variant in ("experts-nvfp4", "attn-fp8", "all-nvfp4", "fp8"):
        size = size_of(config, assigned(config, variant))
        assert needed_bytes(config, size) == size.file_bytes + kv_bytes(config, 16384) + 10**9
        fits[variant] = [fits_card(config, size, card) for card in (24, 32, 80)]
    assert fits == {
        "experts-nvfp4": [True, True, True],
        "attn-fp8": [True, True, True],
        "all-nvfp4": [True, True, True],
        "fp8": [False, False, True],
    }


def test_the_tables_in_the_docs_are_what_the_shapes_give() -> None:
    run = subprocess.run([sys.executable, "tools/recipes_table.py", "--check"], cwd=ROOT)
    assert run.returncode == 0, "run python tools/recipes_table.py"

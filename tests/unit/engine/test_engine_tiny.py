"""hy3-tiny's greedy text against draft depth and concurrency; benchmarks hold the full form."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from hy3.model.decoder import load_model
from support.tiny import TINY

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "benchmarks" / "draft_invariance.py"
sys.path.insert(0, str(SCRIPT.parent))

from chat_prompts import make_prompts  # noqa: E402
from draft_invariance import bf16_step, compare, complete, holds, near_tie  # noqa: E402


@pytest.fixture(scope="module")
def prompts():
    return make_prompts(TINY, 12)


def test_text_is_the_same_at_any_depth_and_concurrency(prompts):
    exact = compare(load_model(TINY, dtype=torch.float32), prompts, 6, depths=(1, 3))
    rounded = compare(load_model(TINY), prompts, 16)
    assert holds([asdict(run) for run in exact], [asdict(run) for run in rounded], len(prompts))
    assert len(exact) == 4 and len(rounded) == 8
    first, second = rounded[4].accepted
    assert 0 < second < first


def test_a_planted_difference_is_judged(prompts):
    model = load_model(TINY)
    (reference,), _ = complete(model, prompts[:1], 8, 0, 1)
    other, decided = list(reference), list(reference)
    other[3] = reference[2]
    assert near_tie(model, prompts[0], reference, reference) is None
    decided[3] = type(reference[3])(reference[3].token_id, 0.0, ((1, -0.1), (2, -9.0)))
    assert near_tie(model, prompts[0], decided, other) is False
    undecided = list(reference)
    undecided[3] = type(reference[3])(reference[3].token_id, 0.0, ((1, -0.7), (2, -0.7)))
    assert near_tie(model, prompts[0], undecided, other) is True
    assert near_tie(model, prompts[0], reference, reference[:-1]) is False


def test_the_rule():
    same, tie = {"differing": 0, "near_ties": 0}, {"differing": 1, "near_ties": 1}
    apart = {"differing": 1, "near_ties": 0}
    assert holds([same], [same, tie], 100)
    assert not holds([tie], [same], 100), "fp32 allows nothing"
    assert not holds([same], [apart], 100)
    assert not holds([same], [tie], 99), "one in a hundred"


def test_bf16_step():
    for value in (1.0, 1.5, 3.0, 100.0, -7.0):
        exact = torch.tensor(value, dtype=torch.bfloat16)
        upper = torch.nextafter(exact.abs(), torch.tensor(torch.inf, dtype=torch.bfloat16))
        assert bf16_step(value) == float(upper) - abs(value)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_hundred_prompts(tmp_path):
    out = tmp_path / "result.json"
    subprocess.run([sys.executable, SCRIPT, "--out", out], check=True, timeout=3600)
    result = json.loads(out.read_text())
    assert result["prompts"] == 200 and result["ok"]

"""``benchmarks/vllm_agreement.py``: what counts as agreement, and the faults it plants."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from hy3.checkpoint.header import TensorSpec

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import vllm_faults
import vllm_verdict
from vllm_agreement import keep_earlier
from vllm_case import gap
from vllm_verdict import Answers, Twin, judge

LOG = """\
(EngineCore pid=7) INFO 12-02 05:31:20 [nvfp4.py:211] Using 'MARLIN' NvFp4 MoE backend out of []
INFO 12-02 05:31:20 [__init__.py:870] Selected MarlinFP8ScaledMMLinearKernel for W8A16
INFO 12-02 05:31:20 [model.py:1] Using max model len 1024
INFO 12-02 05:31:20 [nvfp4.py:211] Using 'MARLIN' NvFp4 MoE backend out of []
"""


def answers(shift=0.0, single=0.01, pieces=0.0, tokens=(1, 2, 3), gaps=(2.0, 0.1, 3.0), **more):
    logprobs = {"together": [[-1.0 + shift, -2.0], [-3.0]], "single": [[-1.0, -2.0 - single], [-3]]}
    logprobs["pieces"] = [[-1.0, -2.0], [-3.0 - pieces]]
    greedy = [{"tokens": list(tokens), "gaps": list(gaps)}]
    result = {"prompt_logprobs": logprobs, "greedy": greedy, "drafts": {}, "start_seconds": 1.0}
    return Answers(result | more, LOG)


def twin(exact=None, **more):
    return Twin(answers(**more), exact)


def test_equal_answers_agree():
    verdict = judge(answers(), twin())
    assert verdict["outcome"] == "agrees"
    assert verdict["mean_abs_difference"] == 0
    assert verdict["own_differences"] == {"single": 0.00333, "pieces": 0.0}
    assert verdict["from_fp32"] is None
    assert verdict["kernels"] == [
        "Using 'MARLIN' NvFp4 MoE backend out of []",
        "Selected MarlinFP8ScaledMMLinearKernel for W8A16",
    ]


@pytest.mark.parametrize("shift, outcome", [(0.02, "agrees"), (0.04, "differs"), (-1.0, "differs")])
def test_both_bounds_of_the_mean(shift, outcome):
    """own is 0.01 / 3, so the mean may be 0.01: a shift of 0.03 of one token among three."""
    assert judge(answers(shift), twin())["outcome"] == outcome
    noisy = judge(answers(0.2), twin(single=3.0))
    assert noisy["within_own_factor"] and not noisy["within_mean_bound"]
    assert noisy["outcome"] == "differs"


def test_the_largest_of_the_twins_own_differences_counts():
    assert judge(answers(0.09), twin())["outcome"] == "differs"
    assert judge(answers(0.09), twin(pieces=0.04))["outcome"] == "agrees"


def test_both_sides_are_measured_from_fp32():
    verdict = judge(answers(0.3), twin(exact=[-1.0, -2.0, -3.3]))
    assert verdict["from_fp32"] == {
        "checkpoint": {"mean": 0.2, "max": 0.3},
        "twin": {"mean": 0.1, "max": 0.3},
    }


def test_nan_differs_and_can_be_written_as_json():
    verdict = judge(answers(math.nan), twin())
    assert (verdict["outcome"], verdict["not_finite"]) == ("differs", 1)
    assert "NaN" not in json.dumps(verdict) and "Infinity" not in json.dumps(verdict)


@pytest.mark.parametrize(
    "tokens, outcome", [((1, 9, 3), "agrees"), ((9, 2, 3), "differs"), ((1, 2), "differs")]
)
def test_text_may_part_at_a_near_tie_only(tokens, outcome):
    verdict = judge(answers(tokens=tokens), twin())
    assert verdict["outcome"] == outcome
    assert verdict["greedy"]["equal"] == 0


def test_a_refusal_keeps_its_message():
    verdict = judge(Answers({"refused": "ValueError: no kernel"}, LOG), twin())
    assert (verdict["outcome"], verdict["message"]) == ("refused", "ValueError: no kernel")
    assert judge(Answers({"not_run": "late"}, ""), twin())["outcome"] == "not_run"
    no_twin = Twin(Answers({"refused": "no"}, ""), None)
    assert judge(answers(), no_twin)["outcome"] == "no_twin"


def test_gap_is_between_the_two_likeliest():
    class Place:
        def __init__(self, logprob):
            self.logprob = logprob

    assert gap({4: Place(-3.0), 7: Place(-0.5), 2: Place(-1.0)}) == 0.5


def test_cases_of_an_earlier_run_stay_where_none_is_new():
    def case(name, outcome):
        return {"checkpoint": name, "mode": "m", "kv_dtype": "fp8", "outcome": outcome}

    earlier = {
        "cases": [case("a", "agrees"), case("b", "not_run"), case("c", "agrees")],
        "planted_faults": [],
        "source_against_twins": {"a": 1, "c": 3},
        "documents": 24,
        "commit": "old",
    }
    results = {
        "cases": [case("b", "agrees"), case("c", "not_run"), case("d", "not_run")],
        "planted_faults": [],
        "source_against_twins": {"c": 4},
    }
    keep_earlier(results, earlier)
    assert [(each["checkpoint"], each["outcome"]) for each in results["cases"]] == [
        ("a", "agrees"),
        ("b", "agrees"),
        ("c", "agrees"),
        ("d", "not_run"),
    ]
    assert results["source_against_twins"] == {"a": 1, "c": 4}
    assert results["documents"] == 24 and "commit" not in results


def contents():
    expert, shared = "model.layers.1.mlp.experts.0", "model.layers.1.mlp.shared_mlp"
    arrays = {
        f"{expert}.gate_proj.weight_packed": np.array([[0x21]], np.uint8),
        f"{expert}.up_proj.weight_packed": np.array([[0x43]], np.uint8),
        f"{expert}.gate_proj.weight_global_scale": np.array([4.0], np.float32),
        f"{shared}.gate_proj.weight": np.array([[7]], np.uint16),
    }
    dtypes = {"uint8": "U8", "float32": "F32", "uint16": "BF16"}
    return {
        name: (TensorSpec(name, dtypes[str(array.dtype)], array.shape), array)
        for name, array in arrays.items()
    }


def values(changed):
    return {name.split("layers.1.mlp.")[1]: data.item() for name, (_, data) in changed.items()}


def test_planted_faults_change_experts_only():
    inverted, swapped, same = contents(), contents(), values(contents())
    vllm_faults.invert_global_scale(inverted)
    assert values(inverted) == same | {"experts.0.gate_proj.weight_global_scale": 0.25}
    vllm_faults.swap_nibbles(swapped)
    assert values(swapped) == same | {
        "experts.0.gate_proj.weight_packed": 0x12,
        "experts.0.up_proj.weight_packed": 0x34,
    }
    exchanged = vllm_faults.exchange_gate_and_up(contents())
    assert values(exchanged) == {
        "experts.0.gate_proj.weight_packed": 0x43,
        "experts.0.up_proj.weight_packed": 0x21,
        "experts.0.up_proj.weight_global_scale": 4.0,
        "shared_mlp.gate_proj.weight": 7,
    }
    assert all(name == spec.name for name, (spec, _) in exchanged.items())
    assert vllm_verdict.MEAN_BOUND == 0.05 and vllm_verdict.OWN_FACTOR == 3

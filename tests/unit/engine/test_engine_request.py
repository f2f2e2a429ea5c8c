"""Requests reject values out of range and fan out into distinct seeds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hy3.engine.config import EngineConfig
from hy3.engine.request import Request, SamplingParams, fan_out
from hy3.errors import InputError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("min_tokens", 9),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("min_p", 1.5),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("logprobs", -1),
        ("logprobs", 129),
        ("logit_bias", {3: 101.0}),
    ],
)
def test_out_of_range_values_are_named(name, value):
    with pytest.raises(InputError) as caught:
        SamplingParams(**{"max_tokens": 8, name: value})
    assert caught.value.where.startswith(name)


def test_limits_of_the_range_are_allowed():
    SamplingParams(max_tokens=1, min_tokens=1, top_p=1e-9, top_k=0, min_p=1.0, logprobs=0)


def test_fan_out_spreads_seeds_and_keeps_a_single_request():
    request = Request("a", (1, 2), SamplingParams(max_tokens=4, seed=7))
    assert fan_out(request, 1) == [request]
    many = fan_out(request, 3)
    assert [r.id for r in many] == ["a-0", "a-1", "a-2"]
    assert [r.params.seed for r in many] == [7, 8, 9]
    unseeded = Request("a", (1, 2), SamplingParams(max_tokens=4))
    assert {r.params.seed for r in fan_out(unseeded, 3)} == {None}


def test_greedy_and_penalised():
    assert SamplingParams(max_tokens=1, temperature=0).greedy
    assert not SamplingParams(max_tokens=1).penalised
    assert SamplingParams(max_tokens=1, repetition_penalty=1.1).penalised
    assert SamplingParams(max_tokens=1, frequency_penalty=-0.5).penalised


@pytest.mark.parametrize("change", [{"num_blocks": 0}, {"draft_depth": -1}, {"max_step_tokens": 4}])
def test_engine_config_rejects(change):
    with pytest.raises(InputError):
        EngineConfig(**{"num_blocks": 8, "max_context": 64, **change})


def test_requests_load_no_torch():
    code = "import hy3.engine.request, hy3.engine.config, hy3.engine.stats, sys; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

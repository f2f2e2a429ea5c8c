"""Patterns of a foreign config: those in use are taken, those that never end are refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hy3.checkpoint.model_config import parse_config
from hy3.checkpoint.patterns import BadPatternError, check_pattern
from hy3.checkpoint.quantization_config import parse_quantization_config
from hy3.checkpoint.scheme_writer import quantization_config
from hy3.errors import InputError
from hy3.quantize.assignment import assign
from hy3.quantize.recipe import load_recipe
from support.real_models import HY3
from support.recipes import VARIANTS

IN_USE = [
    r".*mlp\.experts\.\d+\.(gate|up|down)_proj$",
    r".*layers\.(0|1|2)\..*(q|k|v)_proj.*",
    r"(?!.*mtp).*",
    r"(model\.)?layers\.[0-9]+\.(self_attn)?.*",
    r"[(]a+[)+]+\(\w+\)+",
    r"(abc)+(?:de){2,3}",
    r"(a?b){2}c{3}",
]
ENDLESS = [r"(a+)+$", r"(\w+[.]?)+!", r"(\w|\d)*!", r"((\w)*)*!", r"(?:.*,){1000}x", r"(a*){2,}b"]


@pytest.mark.parametrize("pattern", IN_USE)
def test_patterns_in_use_are_taken(pattern: str) -> None:
    check_pattern(pattern)


@pytest.mark.parametrize("recipe", VARIANTS)
def test_what_we_write_is_taken(recipe: str) -> None:
    config = parse_config(HY3)
    name, activations, lm_head, layout = VARIANTS[recipe]
    chosen = load_recipe(name).with_options(activations, lm_head)
    value = quantization_config(config, assign(config, chosen, "bf16", layout).forms, layout)
    assert parse_quantization_config({"quantization_config": value}) is not None


@pytest.mark.parametrize("pattern", ENDLESS)
def test_endless_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(BadPatternError, match="may never end"):
        check_pattern(pattern)
    value = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": [f"re:{pattern}"]}
    with pytest.raises(InputError, match="may never end"):
        parse_quantization_config({"quantization_config": value})


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "(?P<a"])
def test_patterns_that_do_not_compile(pattern: str) -> None:
    with pytest.raises(BadPatternError):
        check_pattern(pattern)


def test_the_danger_is_real() -> None:
    """One of the refused ones does not end within a second on the name of a module."""
    name = "model.layers.1.mlp.experts.12.gate_proj.weight_packed"
    script = f"import re; re.compile({ENDLESS[1]!r}).match({name!r})"
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", script], timeout=1)

"""Recipes: ordered rules, and every way in which one can be wrong."""

from __future__ import annotations

import pytest

from hy3.errors import InputError
from hy3.quantize.recipe import load_recipe, parse_recipe, recipe_names


def test_the_recipe_that_comes_with_hy3() -> None:
    assert recipe_names() == ["experts-nvfp4"]
    recipe = load_recipe("experts-nvfp4")
    assert recipe.format_of("routed_expert") == "nvfp4"
    for kind in (
        "shared_expert",
        "attention",
        "router",
        "expert_bias",
        "mtp_projection",
        "lm_head",
    ):
        assert recipe.format_of(kind) == "copy"


def test_the_first_matching_rule_counts() -> None:
    rules = [("routed_expert", "copy"), ("routed_expert", "nvfp4"), ("*", "copy")]
    text = "".join(f"[[rules]]\nclass = '{kind}'\nformat = '{form}'\n" for kind, form in rules)
    assert parse_recipe("x", text).format_of("routed_expert") == "copy"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[", "not valid TOML"),
        ("", "must hold"),
        ("rules = 3", "must hold"),
        ("title = 1\n[[rules]]\nclass='*'\nformat='copy'", "must hold"),
        ("[[rules]]\nclass='*'", "the keys class and format"),
        ("[[rules]]\nclass='*'\nformat='fp8'", "format 'fp8' is unknown"),
        ("[[rules]]\nclass='attention'\nformat='nvfp4'", "not 'attention'"),
        ("[[rules]]\nclass='*'\nformat='nvfp4'", r"not '\*'"),
        ("[[rules]]\nclass='router'\nformat='copy'", "the last rule"),
    ],
)
def test_faults(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse_recipe("x", text)


def test_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        load_recipe("../secret")
    assert "experts-nvfp4" in caught.value.hint

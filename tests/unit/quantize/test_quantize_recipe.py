"""Recipes: ordered rules, options over them, and every way in which a file can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from hy3.errors import InputError
from hy3.quantize.recipe import Rule, decode_rules, load_recipe, parse_recipe, recipe_names

HEAD, ROUTER = "lm_head.weight", "model.layers.1.mlp.router.gate.weight"
EXPERT = "model.layers.1.mlp.experts.0.up_proj.weight"
SHARED = "model.layers.1.mlp.shared_mlp.up_proj.weight"
DENSE = "model.layers.0.mlp.up_proj.weight"
QUERY = "model.layers.1.self_attn.q_proj.weight"
MATRICES = (EXPERT, SHARED, DENSE, QUERY, ROUTER, HEAD, "model.layers.80.eh_proj.weight")
REST = "[[rules]]\nclass='*'\nformat='copy'\n"


def formats(recipe) -> list[str]:
    return [recipe.format_of(name) for name in MATRICES]


def test_the_recipes_that_come_with_hy3() -> None:
    expected = {
        "experts-nvfp4": ["nvfp4", "copy", "copy", "copy"],
        "experts-nvfp4-attn-fp8": ["nvfp4", "fp8", "fp8", "fp8"],
        "all-nvfp4": ["nvfp4"] * 4,
        "fp8": ["fp8-block"] * 4,
    }
    assert recipe_names() == sorted(expected)
    for name, first in expected.items():
        recipe = load_recipe(name)
        assert formats(recipe) == [*first, "copy", "copy", "copy"], name
        assert recipe.description.endswith(".") and recipe.lm_head == "bf16"


def test_options_override_the_recipe() -> None:
    mixed = load_recipe("experts-nvfp4-attn-fp8")
    dynamic = mixed.with_options("dynamic", "fp8")
    blocks = ["fp8-block"] * 3
    # A head in blocks is loaded by no engine, so it stays per channel.
    assert formats(dynamic) == ["nvfp4", *blocks, "copy", "fp8", "copy"]
    assert (dynamic.fp8_activations, dynamic.lm_head) == ("dynamic", "fp8")
    assert dynamic.with_options("none", "bf16").lm_head == "bf16"
    assert mixed.with_options(None, None) == mixed == mixed.with_options("none", "bf16")


def test_the_first_matching_rule_counts_and_match_is_the_whole_module() -> None:
    text = (
        "[[rules]]\nmatch='model\\.layers\\.[0-2]\\.mlp\\..*'\nformat='copy'\n"
        "[[rules]]\nmatch='self_attn'\nformat='copy'\n"
        "[[rules]]\nclass='routed_expert'\nformat='nvfp4'\n"
        "[[rules]]\nclass='attention'\nformat='fp8'\n" + REST
    )
    recipe = parse_recipe("x", text)
    assert recipe.format_of(EXPERT) == "copy" and recipe.format_of(QUERY) == "fp8"
    assert recipe.format_of(EXPERT.replace(".1.", ".3.")) == "nvfp4"
    assert recipe.rule_of(EXPERT) == Rule("match", r"model\.layers\.[0-2]\.mlp\..*", "copy")


@pytest.mark.parametrize("name", ["experts-nvfp4-attn-fp8", "fp8"])
def test_a_manifest_gives_the_rules_back(name: str) -> None:
    recipe = load_recipe(name).with_options("dynamic", "fp8")
    restored = decode_rules(name, recipe.encode_rules(), recipe.fp8_activations)
    assert (restored.rules, formats(restored)) == (recipe.rules, formats(recipe))
    for damaged in ("", "3", "[[1]]", '[["class", "router"]]', '[["class", "router", "int4"]]'):
        with pytest.raises(InputError):
            decode_rules("x", damaged, "none")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('description = "Mine."\n[[rules]]\nclass="attention"\nformat="fp8"\n' + REST)
    recipe = load_recipe(str(path))
    assert (recipe.name, recipe.description) == ("mine", "Mine.")
    with pytest.raises(InputError, match="cannot be read") as caught:
        load_recipe(str(tmp_path / "none.toml"))
    assert caught.value.where == str(tmp_path / "none.toml")
    assert "TOML" in caught.value.hint
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match="UTF-8"):
        load_recipe(str(path))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[", "not valid TOML"),
        ("", "must hold"),
        ("rules = 3", "must hold"),
        ("title = 1\n" + REST, "unknown key 'title'"),
        ("description = 1\n" + REST, "description must be text"),
        ("fp8_activations = 'static'\n" + REST, "fp8_activations must be one of"),
        ("[[rules]]\nclass='*'", "a rule has the key class or match"),
        ("[[rules]]\nclass='*'\nmatch='x'\nformat='copy'", "a rule has the key class or match"),
        ("[[rules]]\nclass='*'\nformat='int4'", "format 'int4' is unknown"),
        ("[[rules]]\nclass=1\nformat='copy'", "class must be text"),
        ("[[rules]]\nclass='experts'\nformat='nvfp4'\n" + REST, "class 'experts' is unknown"),
        ("[[rules]]\nmatch='('\nformat='copy'\n" + REST, r"bad pattern '\('"),
        ("[[rules]]\nclass='router'\nformat='copy'", "the last rule"),
        ("[[rules]]\nmatch='.*'\nformat='copy'", "the last rule"),
    ],
)
def test_faults(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse_recipe("x", text)


def test_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        load_recipe("../secret")
    assert "experts-nvfp4-attn-fp8" in caught.value.hint

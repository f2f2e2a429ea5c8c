"""What recipes make of a model, and those that no engine could serve: refused, with the reason."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from hy3.checkpoint.model_config import parse_config
from hy3.errors import InputError
from hy3.quantize.assignment import assign
from hy3.quantize.recipe import load_recipe, parse_recipe
from support.real_models import HY3
from support.recipes import LAYOUT, VARIANTS, assigned

CONFIG = parse_config(HY3)
SMALL = parse_config({**HY3, "num_hidden_layers": 3, "num_experts": 2, "num_experts_per_tok": 1})
EXPERTS = "[[rules]]\nclass='routed_expert'\nformat='nvfp4'\n"
REST = "[[rules]]\nclass='*'\nformat='copy'\n"


def recipe(*rules: tuple[str, str, str], rest: str = EXPERTS + REST):
    text = "".join(f"[[rules]]\n{by}='{what}'\nformat='{form}'\n" for by, what, form in rules)
    return parse_recipe("mine", text + rest)


def test_counts_of_hy3() -> None:
    linears = 80 * (192 * 3 + 3) + 3 + 81 * 4
    counts = {name: Counter(assigned(CONFIG, name).forms.values()) for name in VARIANTS}
    assert counts["experts-nvfp4"] == {"nvfp4": 46_080, "bf16": 47_138 - 46_080}
    assert counts["all-nvfp4"]["nvfp4"] == counts["fp8"]["fp8-block"] == linears == 46_647
    assert counts["attn-fp8"] == {"nvfp4": 46_080, "fp8": 567, "bf16": 491}
    assert counts["attn-fp8+dynamic"]["fp8-block"] == 567
    assert counts["fp8+head"] == {"fp8-block": linears, "fp8": 1, "bf16": 490}
    assert counts["all-nvfp4+modelopt"] == {"modelopt-nvfp4": linears, "bf16": 491}


def test_an_mtp_layer_that_stays_bf16() -> None:
    forms = assigned(CONFIG, "all-nvfp4", mtp="bf16").forms
    assert {forms[name] for name in forms if name.startswith("model.layers.80.")} == {"bf16"}
    without = parse_config({**HY3, "num_nextn_predict_layers": 0})
    assert assigned(without, mtp="bf16").mtp == "same"


REFUSED = [  # a rule before the others, and what is said of it
    ("class", "router", "fp8", "router.gate.weight .router.: both engines compute it in fp32"),
    ("class", "norm", "fp8", "it is a vector"),
    ("class", "embedding", "nvfp4", "look its rows up"),
    ("class", "expert_bias", "fp8", "want it in F32"),
    ("class", "mtp_projection", "nvfp4", "plain linear"),
    ("class", "lm_head", "nvfp4", "gives nvfp4 to lm_head"),
    ("class", "lm_head", "fp8-block", "gives fp8-block to lm_head"),
    ("class", "routed_expert", "fp8", "experts FP8 by weight only"),
    ("match", r".*\.self_attn\.q_proj", "fp8", "q_proj.weight fp8 and .*k_proj.weight bf16"),
    ("match", r".*\.self_attn\.[qk]_proj", "nvfp4", "q_proj.weight nvfp4 and .*v_proj"),
    ("match", r".*\.shared_mlp\.up_proj", "fp8", "gate_proj.weight bf16 and .*up_proj.weight fp8"),
    ("match", r".*\.experts\.1\..*", "copy", "experts.0.gate_proj.weight nvfp4 and .*experts.1"),
    ("match", r".*\.experts\..*\.down_proj", "copy", "nvfp4 and .*down_proj.weight bf16"),
    ("match", "model.layers.7.self_attn.o_proj", "fp8", "matches no module"),
    ("match", "self_attn", "fp8", "matches no module"),
    ("match", r"model\.layers\.\d+\.mlp\..*", "nvfp4", "mlp.router.gate.weight"),
]


@pytest.mark.parametrize(("by", "pattern", "form", "problem"), REFUSED)
def test_recipes_that_cannot_work(by: str, pattern: str, form: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        assign(SMALL, recipe((by, pattern, form)), "same", LAYOUT)
    assert caught.value.where == "recipe mine" and caught.value.hint


def test_a_recipe_that_quantizes_nothing() -> None:
    with pytest.raises(InputError, match="quantizes nothing"):
        assign(SMALL, recipe(rest=REST), "same", LAYOUT)


def test_weight_only_experts_by_option() -> None:
    with pytest.raises(InputError, match="experts FP8 by weight only") as caught:
        assign(SMALL, load_recipe("fp8").with_options("none", None), "same", LAYOUT)
    assert "--fp8-activations dynamic" in caught.value.hint and "vLLM" in caught.value.hint


@pytest.mark.parametrize(
    ("changed", "form", "problem"),
    [
        ({"expert_hidden_dim": 24, "moe_intermediate_size": 24}, "nvfp4", "does not fit NVFP4"),
        ({"expert_hidden_dim": 64, "moe_intermediate_size": 64}, "fp8-block", "rows and columns"),
        ({"num_key_value_heads": 1, "head_dim": 64}, "fp8-block", "k_proj.*does not fit FP8-BLOCK"),
        ({"intermediate_size": 192}, "fp8-block", "0.mlp.gate_proj.*does not fit FP8-BLOCK"),
    ],
)
def test_shapes_that_do_not_fit(changed: dict, form: str, problem: str) -> None:
    rules = [("class", kind, form) for kind in ("routed_expert", "attention", "dense_mlp")]
    config = parse_config({**HY3, "num_hidden_layers": 2, "num_experts": 8, **changed})
    with pytest.raises(InputError) as caught:
        assign(config, recipe(*rules), "same", LAYOUT)
    assert re.search(problem, f"{caught.value.message} {caught.value.hint}")


@pytest.mark.parametrize("variant", ["attn-fp8", "attn-fp8+dynamic", "fp8", "all-nvfp4+head"])
def test_what_modelopts_layout_cannot_say(variant: str) -> None:
    name, activations, head, _ = VARIANTS[variant]
    with pytest.raises(InputError, match="this layout cannot say") as caught:
        chosen = load_recipe(name).with_options(activations, head)
        assign(CONFIG, chosen, "same", "modelopt")
    assert caught.value.where == "--format modelopt"
    assert "compressed-tensors" in caught.value.hint

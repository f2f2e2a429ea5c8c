"""The table of engines: what is known, what is not, and what a checkpoint makes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hy3.checkpoint.quantization_config import parse_quantization_config
from hy3.doctor.checks import engine
from hy3.doctor.engine_matrix import (
    ENGINES,
    Engine,
    Feature,
    feature,
    features,
    nccl_floor,
    parse_engine,
    version_key,
)
from hy3.errors import InputError

CHECKS = {check.id: check for check in engine.CHECKS}
SUFFIX, WRITTEN = "<think:opensource>", "model.layers.1.mlp"


def case(tmp_path, chosen: Engine | None, needy: bool) -> Any:
    """A checkpoint that needs everything, or nothing."""
    text = f'{{"added_tokens": [{{"content": "{SUFFIX if needy else "<think>"}"}}]}}'
    (tmp_path / "tokenizer.json").write_text(text)
    forms = {
        f"{WRITTEN}.experts.0.up_proj.weight": "nvfp4",
        f"{WRITTEN}.shared_mlp.up_proj.weight": "bf16",
        "model.layers.3.eh_proj.weight": "nvfp4",
    }
    census = SimpleNamespace(
        forms=forms if needy else dict.fromkeys(forms, "bf16"),
        mtp=object() if needy else None,
        unexpected=(f"{WRITTEN}.shared_experts.up_proj.weight",) if needy else (),
    )
    group = SimpleNamespace(weight_only=True, scheme="fp8")
    quantization = SimpleNamespace(
        groups=[group], method="modelopt", vllm_scheme=lambda prefix: "nvfp4"
    )
    return SimpleNamespace(
        engine=chosen, folder=tmp_path, census=census, quantization=quantization if needy else None
    )


@pytest.mark.parametrize(
    ("identity", "typed", "verdict"),
    [
        ("engine-reads-suffix", "vllm==0.23.0", "PROBLEM"),
        ("engine-reads-suffix", "vllm==0.23.1.dev790", "INCONCLUSIVE"),
        ("engine-reads-suffix", "vllm==0.25.0", "INCONCLUSIVE"),
        ("engine-reads-suffix", "vllm==0.26.0", "CLEAN"),
        ("engine-reads-suffix", "vllm==0.33.0", "CLEAN"),
        ("engine-places-shared-mlp", "vllm==0.26.0", "PROBLEM"),
        ("engine-places-shared-mlp", "vllm==0.27.0", "INCONCLUSIVE"),
        ("engine-places-shared-mlp", "vllm==0.34.0", "CLEAN"),
        ("engine-places-shared-mlp", "sglang==0.5.23", "NOT CHECKED"),
        ("engine-keeps-bias-fp32", "vllm==0.33.0", "CLEAN"),
        ("engine-compiles-draft", "vllm==0.33.0", "INCONCLUSIVE"),
        ("engine-quantized-eh-proj", "vllm==0.26.0", "PROBLEM"),
        ("engine-quantized-eh-proj", "vllm==0.35.0", "INCONCLUSIVE"),
        ("engine-w4a16-moe", "sglang==0.5.14", "PROBLEM"),
        ("engine-w4a16-moe", "sglang==0.5.20", "INCONCLUSIVE"),
        ("engine-w4a16-moe", "sglang==0.5.23", "CLEAN"),
        ("engine-w4a16-moe", "vllm==0.26.0", "CLEAN"),
        ("engine-excludes-draft-head", "vllm==0.26.0", "PROBLEM"),
        ("engine-excludes-draft-head", "vllm==0.33.0", "INCONCLUSIVE"),
        ("engine-weight-only-fp8", "vllm==0.26.0", "INCONCLUSIVE"),
        ("engine-weight-only-fp8", "vllm==0.32.0", "CLEAN"),
        ("engine-loads-draft-norm", "sglang==0.5.23", "CLEAN"),
        ("engine-renames-shared-experts", "sglang==0.5.23", "PROBLEM"),
    ],
)
def test_what_is_known(tmp_path, identity, typed, verdict):
    assert CHECKS[identity].run(case(tmp_path, parse_engine(typed), True)).verdict == verdict


@pytest.mark.parametrize("identity", CHECKS)
def test_what_does_not_matter_and_what_nobody_said(tmp_path, identity):
    chosen = Engine("vllm", "0.23.0")
    expected = "INCONCLUSIVE" if identity == "engine-keeps-bias-fp32" else "CLEAN"
    assert CHECKS[identity].run(case(tmp_path, chosen, False)).verdict == expected
    assert CHECKS[identity].run(case(tmp_path, None, True)).verdict == "NOT CHECKED"


def test_between_what_is_known_nothing_is():
    versions = {"vllm": {"1.0": False, "1.4.0": True, "2.0": True}}
    line = Feature("x", "", "stops", "", "", "", "", versions)
    known = {v: line.known(Engine("vllm", v)) for v in ("0.9", "1.0", "1.2", "1.4.0", "1.9", "3")}
    assert known == {
        **{"0.9": False, "1.0": False, "1.2": None},
        **{"1.4.0": True, "1.9": True, "3": True},
    }
    assert line.known(Engine("sglang", "1.0")) is None


def test_the_table_is_whole():
    table = features()
    assert len({each.id for each in table}) == len(table) > 0
    for each in table:
        assert each.source.startswith("https://") and each.severity in ("stops", "wrong", "slows")
        assert each.versions.keys() <= set(ENGINES)
        assert each.id == "counts-cache-as-free" or each.id in CHECKS
    assert feature("engine-w4a16-moe").versions["sglang"]["0.5.15"] is False
    assert version_key(nccl_floor()) == (2, 30, 4)


@pytest.mark.parametrize("bad", ["vllm", "vllm==", "trt==1.0", "vllm==x", "vllm=0.26"])
def test_engines_as_they_are_not_typed(bad):
    with pytest.raises(InputError):
        parse_engine(bad)


@pytest.mark.parametrize(
    ("ignore", "verdict"),
    [
        (["re:.*shared_mlp.*"], "PROBLEM"),
        (["re:.*shared_mlp.*", r"re:.*mlp\.down_proj$"], "PROBLEM"),
        (["re:.*shared_mlp.*", r"re:.*mlp\.(gate_up|gate|up|down)_proj$"], "CLEAN"),
    ],
)
def test_a_list_that_knows_both_names_of_the_shared_expert_is_sound(ignore, verdict):
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    scheme = {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ignore,
    }
    names = ("gate_proj", "up_proj", "down_proj")
    forms = {f"{WRITTEN}.shared_mlp.{name}.weight": "bf16" for name in names}
    made = SimpleNamespace(
        engine=Engine("vllm", "0.26.0"),
        census=SimpleNamespace(forms=forms),
        quantization=parse_quantization_config({"quantization_config": scheme}),
    )
    assert CHECKS["engine-places-shared-mlp"].run(made).verdict == verdict

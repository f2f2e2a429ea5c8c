"""The expected tensors reproduce the counts and bytes that real headers have."""

from __future__ import annotations

import pytest

from hy3.checkpoint.model_config import parse_config
from hy3.checkpoint.names import (
    expected_tensors,
    fused_with,
    inner_name,
    is_mtp,
    is_routed_expert,
    layer_of,
    tensor_class,
)
from support.real_models import HY3, HY_MT2
from support.recipes import written_specs
from support.weight_files import tensor_shapes

CASES = [  # config, BF16 tensors and bytes, NVFP4 tensors and bytes: published index totals
    (HY3, 47_138, 597_572_342_272, 139_298, 180_826_481_152),
    (HY_MT2, 18_673, 60_129_463_808, 54_769, 19_323_152_384),
]


@pytest.mark.parametrize(("raw", "count", "total", "packed_count", "packed_total"), CASES)
def test_counts_and_bytes(raw, count, total, packed_count, packed_total):
    config = parse_config(raw)
    expected = expected_tensors(config)
    assert len(expected) == count
    assert sum(spec.nbytes for spec in expected.values()) == total
    packed = written_specs(config)
    assert len(packed) == packed_count
    assert sum(spec.nbytes for spec in packed.values()) == packed_total


def test_mtp_left_in_bf16_costs_what_it_should():
    config = parse_config(HY3)
    both = [written_specs(config, mtp=mtp) for mtp in ("same", "bf16")]
    mtp = [spec for spec in both[1].values() if is_mtp(spec.name, config)]
    assert len(mtp) == 593
    packed, plain = (sum(spec.nbytes for spec in each.values()) for each in both)
    experts = 192 * 3 * 1536 * 4096
    assert plain - packed == experts * 2 - (experts // 2 + experts // 16 + 192 * 3 * 4)


@pytest.mark.parametrize("raw", [HY3, HY_MT2])
def test_same_names_and_shapes_as_the_test_generator(raw):
    shapes = {name: spec.shape for name, spec in expected_tensors(parse_config(raw)).items()}
    assert shapes == tensor_shapes({"num_nextn_predict_layers": 0, **raw})


def test_every_expected_tensor_has_a_class():
    config = parse_config(HY3)
    counts: dict[str, int] = {}
    for name in expected_tensors(config):
        kind = tensor_class(name)
        counts[kind] = counts.get(kind, 0) + 1
    assert counts == {
        "embedding": 1,
        "lm_head": 1,
        "norm": 81 * 4 + 3 + 1,
        "attention": 81 * 4,
        "dense_mlp": 3,
        "router": 80,
        "expert_bias": 80,
        "routed_expert": 80 * 192 * 3,
        "shared_expert": 80 * 3,
        "mtp_projection": 1,
    }
    assert {tensor_class(name) for name in written_specs(config)} == set(counts)


def test_questions_about_names():
    config = parse_config(HY3)
    assert is_routed_expert("model.layers.1.mlp.experts.0.gate_proj.weight")
    assert not is_routed_expert("model.layers.1.mlp.shared_mlp.gate_proj.weight")
    assert not is_routed_expert("model.layers.1.mlp.experts.0.gate_proj.weight_packed")
    assert is_mtp("model.layers.80.eh_proj.weight", config)
    assert not is_mtp("model.layers.79.self_attn.q_proj.weight", config)
    assert not is_mtp("lm_head.weight", config)
    assert layer_of("model.norm.weight") is None and layer_of("model.layers.12.x") == 12
    assert fused_with("m.experts.1.gate_proj.weight") == ("m.experts.1.up_proj.weight",)
    assert fused_with("m.experts.1.up_proj.weight_global_scale") == (
        "m.experts.1.gate_proj.weight_global_scale",
    )
    assert fused_with("a.k_proj.weight") == ("a.q_proj.weight", "a.v_proj.weight")
    assert fused_with("m.experts.1.down_proj.weight") == () == fused_with("a.o_proj.weight")
    for name in ("model.rotary.inv_freq", "model.layers.1.mlp.gate.weight", "model.layers.x.y", ""):
        assert tensor_class(name) == "unknown"
    assert tensor_class("model.layers.3.self_attn.k_scale") == "kv_scale"


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("model.layers.1.mlp.gate.weight", "model.layers.1.mlp.router.gate.weight"),
        ("model.layers.1.mlp.gate.wg.weight", "model.layers.1.mlp.router.gate.weight"),
        ("model.layers.1.mlp.e_score_correction_bias", "model.layers.1.mlp.expert_bias"),
        (
            "model.layers.1.mlp.shared_experts.up_proj.weight",
            "model.layers.1.mlp.shared_mlp.up_proj.weight",
        ),
        ("model.layers.1.mlp.router.gate.weight", None),
        ("model.layers.0.mlp.gate_proj.weight", None),
    ],
)
def test_inner_name(outer, inner):
    assert inner_name(outer) == inner

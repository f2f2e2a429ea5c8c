"""Faults that headers and config show are planted and found."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.index import INDEX_NAME
from hy3.checkpoint.manifest import read_manifest
from hy3.quantize.verify import verify
from support.planted import (
    BIAS,
    GATE,
    MTP_DOWN,
    check_of,
    drop,
    edit_config,
    make_foreign,
    only_failure,
    rewrite,
    statuses,
)
from support.quantized import make_quantized, write_manifest


@pytest.mark.parametrize(
    "name",
    [
        f"{GATE}.weight_scale",
        f"{MTP_DOWN}.weight_packed",
        "model.layers.3.eh_proj.weight",
        "model.layers.3.final_layernorm.weight",
        "lm_head.weight",
    ],
)
def test_missing_tensor(source, out, name):
    rewrite(source, out, drop(name))
    only_failure(verify(out), "tensors", f"{name} is missing")


def test_missing_mtp_layer(source, out):
    def change(contents):
        for name in [name for name in contents if name.startswith("model.layers.3.")]:
            del contents[name]

    rewrite(source, out, change)
    verdict = verify(out)
    assert {"tensors", "recipe"} <= statuses(verdict, "fail")
    missing = check_of(verdict, "tensors").tensors
    assert len(missing) == 8 + 1 + 1 + 4 * 3 + 3 + 4


def test_extra_tensor(source, out):
    def change(contents):
        if BIAS in contents:
            spec = TensorSpec("model.layers.1.mlp.shared_experts.up_proj.weight", "F32", (1,))
            contents[spec.name] = (spec, np.zeros(1, np.float32))

    rewrite(source, out, change)
    only_failure(verify(out), "tensors", "is extra: engines want model.layers.1.mlp.shared_mlp")


@pytest.mark.parametrize("name", [f"{GATE}.input_global_scale", "model.layers.1.self_attn.k_scale"])
def test_scales_that_the_recipe_does_not_write(source, out, name):
    def change(contents):
        if BIAS in contents:
            contents[name] = (TensorSpec(name, "F32", (1,)), np.ones(1, np.float32))

    rewrite(source, out, change)
    only_failure(verify(out), "recipe", f"{name} is not of the recipe")
    make_foreign(out)
    assert verify(out).ok


def test_expert_bias_not_f32(source, out):
    def change(contents):
        if BIAS in contents:
            spec, data = contents[BIAS]
            half = (data.view(np.uint32) >> 16).astype(np.uint16)
            contents[BIAS] = (TensorSpec(BIAS, "BF16", spec.shape), half)

    rewrite(source, out, change)
    only_failure(verify(out), "dtypes", f"{BIAS}: BF16 [4], not F32 [4]")


def without(pattern: str) -> Callable[[dict], None]:
    return lambda config: config["quantization_config"]["ignore"].remove(pattern)


def test_ignore_list_leaves_bf16_matched_or_unmatched(source, out):
    edit_config(source, out, without(r"re:.*self_attn\.o_proj$"))
    only_failure(verify(out), "sglang_matching", "model.layers.3.self_attn.o_proj.weight")

    def to_linear(config):
        config["quantization_config"]["config_groups"]["group_0"]["targets"] = ["Linear"]

    edit_config(source, out, to_linear)
    verdict = verify(out)
    assert statuses(verdict, "fail") == {"vllm_matching", "sglang_matching"}
    faults = check_of(verdict, "vllm_matching").tensors
    assert len(faults) == 4 and all("is bf16 but is taken for nvfp4" in each for each in faults)


def test_bf16_mtp_experts_that_the_config_does_not_ignore(source, tmp_path):
    out = make_quantized(source, tmp_path / "out", mtp="bf16")
    edit_config(source, out, without(r"re:.*decoder\..*"))
    only_failure(verify(out), "sglang_matching", MTP_DOWN)
    edit_config(source, out, without(r"re:.*layers\.3\..*"))
    assert statuses(verify(out), "fail") == {"vllm_matching", "sglang_matching"}


def test_quantized_without_a_config(source, out):
    edit_config(source, out, lambda config: config.pop("quantization_config"))
    verdict = verify(out)
    assert statuses(verdict, "fail") == {"scheme", "vllm_matching", "sglang_matching"}


def test_unknown_method_is_not_proved_and_a_broken_config_fails(source, out):
    edit_config(
        source, out, lambda config: config["quantization_config"].update(quant_method="awq")
    )
    unknown = {"scheme", "vllm_matching", "sglang_matching"}
    assert unknown <= statuses(verify(out), "not_proved")
    broken = {"quant_method": "compressed-tensors"}
    edit_config(source, out, lambda config: config.update(quantization_config=broken))
    assert statuses(verify(out), "fail") == {"scheme", "vllm_matching", "sglang_matching"}


def test_recipe_that_was_not_followed(source, tmp_path):
    out = make_quantized(source, tmp_path / "out", mtp="bf16")
    parameters = read_manifest(out).parameters
    write_manifest(source, out, parameters.__class__(**{**vars(parameters), "mtp": "same"}))
    only_failure(verify(out), "recipe", f"{MTP_DOWN}.weight is bf16")


def test_wrong_total_size_and_no_dtype_are_warnings(source, out):
    index = json.loads((out / INDEX_NAME).read_text())
    index["metadata"]["total_size"] += 1
    (out / INDEX_NAME).write_text(json.dumps(index))
    edit_config(source, out, lambda config: config.update(dtype=None, torch_dtype="float16"))
    verdict = verify(out)
    assert verdict.ok and statuses(verdict, "warn") == {"files", "model_dtype"}


def test_bf16_checkpoint(source):
    verdict = verify(source)
    assert verdict.ok
    assert {"tensors", "dtypes", "vllm_matching", "sglang_matching"} <= statuses(verdict, "pass")
    assert {"recipe", "hashes"} <= statuses(verdict, "not_proved")


def _scheme(config):
    return config["quantization_config"]["config_groups"]["group_0"]


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (lambda c: _scheme(c).update(input_activations={"num_bits": 4}), "group_0.input_activ"),
        (lambda c: _scheme(c)["weights"].update(zp_dtype=None), "group_0.weights"),
        (lambda c: _scheme(c).update(format="pack-quantized"), "group_0.format"),
        (lambda c: c["quantization_config"].update(format="float-quantized"), "format"),
        (lambda c: c["quantization_config"].update(kv_cache_scheme={"num_bits": 8}), "kv_cache"),
    ],
)
def test_a_config_that_the_recipe_does_not_write(source, out, change, note):
    edit_config(source, out, change)
    verdict = verify(out)
    assert statuses(verdict, "fail") == {"scheme"}
    assert any(line.startswith(note) for line in check_of(verdict, "scheme").tensors)


def test_a_foreign_config_that_needs_scales_which_are_not_there(source, out):
    make_foreign(out)
    edit_config(source, out, lambda c: c["quantization_config"].update(kv_cache_scheme={}))
    assert check_of(verify(out), "scheme").status == "warn"
    edit_config(source, out, lambda c: _scheme(c).update(input_activations={"num_bits": 4}))
    verdict = verify(out)
    assert statuses(verdict, "fail") == {"scheme"}
    assert f"{GATE}.weight" in check_of(verdict, "scheme").tensors

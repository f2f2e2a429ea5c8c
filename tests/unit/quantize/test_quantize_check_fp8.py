"""Faults planted into files with FP8 and shared tensor scales: each is seen, and named."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.manifest import read_manifest
from hy3.quantize.pipeline import quantize
from hy3.quantize.plan import plan_source
from hy3.quantize.recipe import load_recipe
from hy3.quantize.source import local_source
from hy3.quantize.verify import verify
from support.planted import alter, check_of, edit_config, only_failure, rename, rewrite, statuses
from support.quantized import write_manifest
from support.quantizing import no_progress

O_PROJ, K_PROJ = "model.layers.1.self_attn.o_proj", "model.layers.1.self_attn.k_proj"


def made(source: Path, out: Path, recipe: str, layout: str = "compressed-tensors") -> Path:
    plan = plan_source(local_source(source), load_recipe(recipe), "exact", "same", layout)
    quantize(plan, out, 2, no_progress)
    return out


@pytest.fixture(scope="module")
def mixed(source, tmp_path_factory) -> Path:
    return made(source, tmp_path_factory.mktemp("mixed") / "out", "experts-nvfp4-attn-fp8")


@pytest.fixture(scope="module")
def dense(source, tmp_path_factory) -> Path:
    return made(source, tmp_path_factory.mktemp("dense") / "out", "all-nvfp4", "modelopt")


@pytest.fixture
def fp8(mixed, tmp_path) -> Path:
    return shutil.copytree(mixed, tmp_path / "out")


@pytest.fixture
def modelopt(dense, tmp_path) -> Path:
    return shutil.copytree(dense, tmp_path / "out")


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -0.01])
def test_a_scale_that_no_weight_can_have(source, fp8, value):
    rewrite(source, fp8, alter(f"{O_PROJ}.weight_scale", lambda data: data.__setitem__(5, value)))
    only_failure(verify(fp8), "fp8_scales", f"{O_PROJ}.weight_scale")


def test_a_nan_code(source, fp8):
    rewrite(source, fp8, alter(f"{O_PROJ}.weight", lambda data: data.__setitem__(7, 0x7F)))
    only_failure(verify(fp8), "finite", f"{O_PROJ}.weight")


def test_a_scale_of_another_shape(source, fp8):
    def change(contents):
        name = f"{O_PROJ}.weight_scale"
        if name in contents:
            spec, data = contents[name]
            contents[name] = (TensorSpec(name, "F32", (spec.shape[0] // 2, 2)), data.reshape(-1, 2))

    rewrite(source, fp8, change)
    only_failure(verify(fp8), "dtypes", f"{O_PROJ}.weight_scale")


def test_a_row_that_is_worse_than_plain_rounding(source, fp8):
    rewrite(source, fp8, alter(f"{O_PROJ}.weight", lambda data: data.__setitem__(0, data[0] ^ 8)))
    verdict = verify(fp8, source)
    only_failure(verdict, "group_errors", f"{O_PROJ}.weight: 1 of ")
    assert {"routed_expert", "attention", "dense_mlp"} <= verdict.error_by_class.keys()


def test_a_weight_that_the_recipe_leaves_alone(source, fp8):
    """In the form of another recipe, with a config that agrees."""
    change = rename(f"{O_PROJ}.weight_scale", f"{O_PROJ}.weight_scales")
    rewrite(source, fp8, change)
    assert statuses(verify(fp8), "fail") == {"tensors"}


def test_scales_of_rows_under_the_name_of_scales_of_blocks(source, fp8):
    change = rename(f"{O_PROJ}.weight_scale", f"{O_PROJ}.weight_scale_inv")
    rewrite(source, fp8, change)
    failed = statuses(verify(fp8), "fail")
    assert failed == {"dtypes", "recipe", "vllm_matching", "sglang_matching"}


def test_activations_that_the_recipe_does_not_quantize(source, fp8):
    def quantize_activations(config):
        group = config["quantization_config"]["config_groups"]["group_1"]
        group["input_activations"] = {"num_bits": 8, "type": "float", "dynamic": True}

    edit_config(source, fp8, quantize_activations)
    only_failure(verify(fp8), "scheme", "group_1.input_activations")


def test_blocks_that_are_taken_for_channels(source, fp8):
    def to_blocks(config):
        group = config["quantization_config"]["config_groups"]["group_1"]
        group["weights"]["strategy"] = "block"

    edit_config(source, fp8, to_blocks)
    verdict = verify(fp8)
    assert statuses(verdict, "fail") == {"scheme", "vllm_matching", "sglang_matching"}
    assert "is fp8 but is taken for fp8-block" in check_of(verdict, "vllm_matching").tensors[0]


def test_a_group_that_forgets_the_shared_expert_of_older_vllm(source, fp8):
    """vLLM 0.26 calls it as the dense MLP of that layer."""

    def narrow(config):
        group = config["quantization_config"]["config_groups"]["group_1"]
        group["targets"] = [
            target.replace(r"(mlp|mlp\.shared_mlp)", r"(layers\.0\.mlp|mlp\.shared_mlp)")
            for target in group["targets"]
        ]

    edit_config(source, fp8, narrow)
    only_failure(verify(fp8), "vllm_matching", "shared_mlp", "unquantized")


def test_q_k_and_v_under_different_tensor_scales(source, modelopt):
    name = f"{K_PROJ}.weight_scale_2"
    rewrite(source, modelopt, alter(name, lambda data: data.__imul__(2)))
    only_failure(verify(modelopt), "tensor_scales", name)


def test_a_list_of_wildcards_that_forgets_the_head(source, modelopt):
    edit_config(
        source, modelopt, lambda raw: raw["quantization_config"]["ignore"].remove("lm_head")
    )
    verdict = verify(modelopt)
    assert statuses(verdict, "fail") == {"vllm_matching", "sglang_matching"}
    assert any("lm_head" in each for each in check_of(verdict, "vllm_matching").tensors)


def test_an_algorithm_that_is_not_the_recipes(source, modelopt):
    edit_config(
        source, modelopt, lambda raw: raw["quantization_config"].update({"quant_algo": "NVFP4"})
    )
    only_failure(verify(modelopt), "scheme", "quant_algo")


def test_rules_of_a_manifest_that_no_version_would_write(source, fp8):
    parameters = read_manifest(fp8).parameters
    for rules in ("nonsense", '[["class", "*", "nvfp4"]]'):
        write_manifest(source, fp8, replace(parameters, rules=rules))
        verdict = verify(fp8)
        assert check_of(verdict, "recipe").status == "not_proved"
        assert not statuses(verdict, "fail")

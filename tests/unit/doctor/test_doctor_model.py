"""Faults planted into a sound checkpoint, and the sound one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hy3.checkpoint.header import TensorSpec
from hy3.doctor.checks import model
from hy3.doctor.engine_matrix import Engine
from hy3.doctor.model_case import ModelCase
from hy3.quantize.repair import plan_repair, repair
from support.json_files import edit_json
from support.planted import BIAS, edit_config, rewrite
from support.quantized import make_quantized
from support.scripted import make_random

CHECKS = {check.id: check for check in model.CHECKS}
VLLM, SGLANG = Engine("vllm", "0.33.0"), Engine("sglang", "0.5.23")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return make_random(tmp_path_factory.mktemp("source") / "model", seed=5, num_experts=4)


@pytest.fixture(scope="module")
def sound(source, tmp_path_factory) -> Path:
    return finished(make_quantized(source, tmp_path_factory.mktemp("sound") / "out"))


@pytest.fixture
def out(sound, tmp_path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "Hy3-NVFP4-W4A16"))


def finished(folder: Path) -> Path:
    """With the metadata that ``quantize`` itself would have written."""
    repair(plan_repair(folder))
    for kept in folder.glob("*.bak*"):
        kept.unlink()
    return folder


def verdicts(folder: Path, engine: Engine | None = None) -> dict[str, str]:
    case = ModelCase(folder, engine)
    return {identity: check.run(case).verdict for identity, check in CHECKS.items()}


def only(folder: Path, identity: str, verdict: str = "PROBLEM", engine: Engine | None = None):
    expected = dict.fromkeys(CHECKS, "CLEAN") | {identity: verdict}
    assert verdicts(folder, engine) == expected


@pytest.mark.parametrize("engine", [None, VLLM, SGLANG])
def test_sound(out, engine):
    assert verdicts(out, engine) == dict.fromkeys(CHECKS, "CLEAN")


def test_the_bf16_source(source):
    assert verdicts(source)["ignore-list"] == verdicts(source)["draft-format"] == "CLEAN"


@pytest.mark.parametrize("suffix", [None, "", ":other"])
def test_token_suffix(out, suffix):
    edit_json(out / "tokenizer_config.json", token_suffix=suffix)
    only(out, "token-suffix")
    only(out, "token-suffix", "CLEAN", SGLANG)  # which asks the vocabulary
    fix = CHECKS["token-suffix"].run(ModelCase(out, VLLM)).fix
    assert fix.commands == (("hy3", "repair", str(out)),)
    finished(out)
    only(out, "token-suffix", "CLEAN")


def test_no_markers_at_all(out):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (out / name).unlink()
    only(out, "token-suffix", "INCONCLUSIVE")


def test_dtype_and_top_k(out):
    edit_json(out / "config.json", dtype=None, torch_dtype="float16")
    only(out, "model-dtype")
    edit_json(out / "config.json", dtype="bfloat16")
    edit_json(out / "generation_config.json", top_k=0)
    only(out, "top-k-refused")


def test_expert_bias(source, out):
    def rounded(contents):
        if BIAS in contents:
            spec, data = contents[BIAS]
            half = (data.view(np.uint32) >> 16).astype(np.uint16)
            contents[BIAS] = (TensorSpec(BIAS, "BF16", spec.shape), half)

    rewrite(source, out, rounded)
    only(out, "expert-bias-rounded")


def test_names_that_promise_another_format(out, tmp_path):
    for name, verdict in (
        ("Hy3-AWQ-INT4", "PROBLEM"),
        ("Hy3-FP8", "PROBLEM"),
        ("Hy3-MXFP4", "PROBLEM"),
        ("hy3_nvfp4", "CLEAN"),
        ("mine", "CLEAN"),
    ):
        only(out.rename(tmp_path / name), "name-is-not-format", verdict)
        out = tmp_path / name
    cached = tmp_path / "models--someone--Hy3-AWQ" / "snapshots" / "0123"
    shutil.copytree(out, cached)
    assert ModelCase(cached, None).name == "someone/Hy3-AWQ"
    only(cached, "name-is-not-format")


def test_awq_is_awq(source, tmp_path):
    folder = Path(shutil.copytree(source, tmp_path / "Hy3-AWQ"))
    edit_json(folder / "config.json", quantization_config={"quant_method": "awq", "bits": 4})
    found = verdicts(folder)
    assert found["name-is-not-format"] == "CLEAN"
    assert found["ignore-list"] == "INCONCLUSIVE"  # its rules are not known here


def test_ignore_list(source, out):
    pattern = r"re:.*self_attn\.o_proj$"
    edit_config(source, out, lambda c: c["quantization_config"]["ignore"].remove(pattern))
    only(out, "ignore-list")
    only(out, "ignore-list", "PROBLEM", SGLANG)
    only(out, "ignore-list", "CLEAN", VLLM)  # whose targets are names here


def test_renamed_tensors(source, out):
    def renamed(contents):
        for name in [name for name in contents if ".shared_mlp." in name]:
            spec, data = contents.pop(name)
            name = name.replace("shared_mlp", "shared_experts")
            contents[name] = (TensorSpec(name, spec.dtype, spec.shape), data)

    rewrite(source, out, renamed)
    only(out, "tensor-names")


def test_a_draft_of_another_form(source, tmp_path):
    out = finished(make_quantized(source, tmp_path / "out", mtp="bf16"))
    only(out, "draft-format", "INCONCLUSIVE")
    pattern = r"re:.*decoder\..*"
    edit_config(source, out, lambda c: c["quantization_config"]["ignore"].remove(pattern))
    found = verdicts(out)
    assert found["draft-format"] == found["ignore-list"] == "PROBLEM"


def test_kv_scales(out):
    value = json.loads((out / "config.json").read_text())["quantization_config"]
    edit_json(out / "config.json", quantization_config=value | {"kv_cache_scheme": {"num_bits": 8}})
    only(out, "kv-scales-missing")


def test_broken_files_are_never_clean(out):
    (out / "config.json").write_text("{")
    found = verdicts(out)
    for name in ("model-dtype", "ignore-list", "tensor-names", "name-is-not-format"):
        assert found[name] == "INCONCLUSIVE"


def test_damaged_files(out):
    shard = sorted(out.glob("*.safetensors"))[0]
    whole = shard.read_bytes()
    assert verdicts(out)["files-damaged"] == "CLEAN"
    shard.write_bytes(whole[:-10])
    found = CHECKS["files-damaged"].run(ModelCase(out, None))
    assert found.verdict == "PROBLEM" and shard.name in found.evidence
    assert found.fix is not None and "truncated" in found.fix.text
    shard.unlink()
    assert verdicts(out)["files-damaged"] == "PROBLEM"
    shard.write_bytes(whole)
    edit_json(out / "config.json", num_experts="4")
    assert verdicts(out)["files-damaged"] == "PROBLEM"
    # Another architecture is not ours to judge, and its files are sound.
    edit_json(out / "config.json", model_type="qwen3_moe")
    assert verdicts(out)["files-damaged"] == "CLEAN"
    (out / "config.json").write_bytes(b"\xff\xfe{}")
    assert verdicts(out)["files-damaged"] == "PROBLEM"

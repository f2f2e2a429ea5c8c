"""JSON that others wrote - index, quantization config, manifest - is read or refused, no more."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hy3.checkpoint.engine_rules import RuleConflict
from hy3.checkpoint.file_hash import FileHash
from hy3.checkpoint.header import TensorSpec, encode_header
from hy3.checkpoint.index import INDEX_NAME, open_checkpoint
from hy3.checkpoint.manifest import MANIFEST_NAME, Manifest, Parameters, read_manifest
from hy3.checkpoint.quantization_config import parse_quantization_config
from hy3.errors import InputError
from hy3.quantize.resume import RESUME_NAME, read_resume_state

RELAXED = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
names = st.sampled_from(["x", "y", "a.safetensors", "../a.safetensors", "\ud800", "z\n"])
patterns = st.lists(
    st.sampled_from(["re:(", "re:.*", "re:a{99999999999}", "Linear", "lm_head", ""]) | st.text(),
    max_size=4,
)


def refused_or(run, *arguments):
    try:
        return run(*arguments)
    except InputError as error:
        str(error).encode("utf-8", "surrogatepass")
        assert error.hint
        return None


@RELAXED
@given(index=st.fixed_dictionaries({"weight_map": st.dictionaries(names, names) | values}) | values)
def test_index(tmp_path, index):
    specs = [TensorSpec("x", "U8", (1,)), TensorSpec("y", "U8", (1,))]
    (tmp_path / "a.safetensors").write_bytes(encode_header(specs, {}) + b"ab")
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    checkpoint = refused_or(open_checkpoint, tmp_path)
    if checkpoint is not None:
        assert set(index["weight_map"]) == {"x", "y"} == set(checkpoint.tensors)


group = st.fixed_dictionaries(
    {
        "targets": patterns | values,
        "weights": st.fixed_dictionaries({"num_bits": st.sampled_from([4, 8, "4"]) | values}),
    }
)
config = st.fixed_dictionaries(
    {
        "quant_method": st.sampled_from(["compressed-tensors", "modelopt", "fp8"]) | values,
        "config_groups": st.dictionaries(st.text(max_size=3), group, max_size=2) | values,
        "ignore": patterns | values,
        "quantization": values,
    }
)


@RELAXED
@given(value=config | values)
def test_quantization_config(value):
    parsed = refused_or(parse_quantization_config, {"quantization_config": value})
    if parsed is not None:
        for ask in (parsed.vllm_scheme, parsed.sglang_scheme):
            for prefix in ("model.layers.1.self_attn.qkv_proj", ".lm_head", ""):
                try:
                    assert ask(prefix) in (None, "nvfp4", "fp8", "other")
                except RuleConflict as conflict:
                    assert str(conflict)


files = st.dictionaries(
    st.sampled_from(["config.json", "ä.safetensors"]),
    st.builds(FileHash, st.text("0123456789abcdef", min_size=64, max_size=64), st.integers(0)),
)
manifests = st.builds(
    Manifest, st.builds(Parameters, st.text(), st.text(), st.text(), st.text()), files, files
)


@RELAXED
@given(manifest=manifests)
def test_manifest_round_trip(tmp_path, manifest):
    (tmp_path / MANIFEST_NAME).write_bytes(manifest.encode())
    assert read_manifest(tmp_path) == manifest


@RELAXED
@given(
    value=st.fixed_dictionaries(
        {
            "schema": st.sampled_from(["hy3.manifest/1", "hy3.resume/1"]),
            "parameters": values,
            "source": st.dictionaries(names, values) | values,
            "outputs": values,
            "shards": values,
        }
    )
    | values
)
def test_arbitrary_manifest_and_resume_state(tmp_path, value):
    for name in (MANIFEST_NAME, RESUME_NAME):
        (tmp_path / name).write_text(json.dumps(value))
    refused_or(read_manifest, tmp_path)
    refused_or(read_resume_state, tmp_path)

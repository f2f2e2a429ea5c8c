"""Faults that only the source reveals are planted and found."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.index import open_checkpoint
from hy3.checkpoint.manifest import MANIFEST_NAME
from hy3.checkpoint.reader import TensorReader
from hy3.quantize.verify import verify
from support.planted import (
    BIAS,
    GATE,
    MTP_DOWN,
    alter,
    check_of,
    edit_config,
    make_foreign,
    only_failure,
    rename,
    rewrite,
    statuses,
)
from support.quantized import make_quantized, write_contents, write_index


def test_exact_is_better_than_max(source, sound, tmp_path):
    exact = verify(sound, source).error_by_class["routed_expert"].relative
    plain = verify(make_quantized(source, tmp_path / "out", "max"), source)
    assert exact < 0.8 * plain.error_by_class["routed_expert"].relative


def test_foreign_file_is_not_held_to_our_rules(source, out):
    make_foreign(out)
    verdict = verify(out, source)
    assert verdict.ok
    unproved = {"recipe", "hashes", "group_errors", "source_hashes"}
    assert statuses(verdict, "not_proved") == unproved
    assert verdict.error_by_class["routed_expert"].relative > 0


def test_copied_tensor_that_differs_from_the_source(source, out):
    rewrite(source, out, alter("lm_head.weight", lambda data: data.__setitem__(7, data[7] ^ 1)))
    only_failure(verify(out, source), "copied_bytes", "lm_head.weight")


def test_group_worse_than_rule_max(source, out):
    """One group on a scale four codes too high; everything else is as it was."""
    name = f"{GATE}.weight_scale"
    rewrite(source, out, alter(name, lambda data: data.__setitem__(9, data[9] + 8)))
    only_failure(verify(out, source), "group_errors", f"{GATE}.weight: 1 of ")


def test_one_wrong_nibble(source, out):
    name = f"{MTP_DOWN}.weight_packed"
    rewrite(source, out, alter(name, lambda data: data.__setitem__(0, data[0] ^ 0x88)))
    only_failure(verify(out, source), "group_errors", f"{MTP_DOWN}.weight: 1 of ")


def test_swapped_nibbles_and_inverted_scale(source, out):
    def swap(data):
        data[:] = (data >> 4) | (data << 4)

    rewrite(source, out, alter(f"{MTP_DOWN}.weight_packed", swap))
    only_failure(verify(out, source), "group_errors", MTP_DOWN)
    rewrite(source, out, alter(f"{MTP_DOWN}.weight_packed", swap))
    assert verify(out, source).ok
    rewrite(
        source,
        out,
        alter(f"{MTP_DOWN}.weight_global_scale", lambda data: np.reciprocal(data, out=data)),
    )
    only_failure(verify(out, source), "group_errors", MTP_DOWN)


def test_another_source(source, out, tmp_path):
    other = shutil.copytree(source, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "note": 1}))
    only_failure(verify(out, other), "source_hashes", "config.json is another file")


@pytest.mark.parametrize(
    ("name", "identity"), [(f"{GATE}.weight", "group_errors"), (BIAS, "copied_bytes")]
)
def test_what_the_source_lacks_is_not_proved(source, out, tmp_path, name, identity):
    other = shutil.copytree(source, tmp_path / "other")
    checkpoint = open_checkpoint(other)
    shard = checkpoint.tensors[name]
    with TensorReader(checkpoint) as reader:
        infos = checkpoint.headers[shard].tensors
        kept = [(info.spec, reader.read(each)) for each, info in infos.items() if each != name]
    write_contents(other / shard, kept)
    write_index(other)
    verdict = verify(out, other)
    assert statuses(verdict, "not_proved") == {identity}
    assert statuses(verdict, "fail") == {"source_hashes"}


def test_a_dropped_mtp_layer_cannot_hide_behind_an_edited_config(source, out):
    def change(contents):
        for name in [name for name in contents if name.startswith("model.layers.3.")]:
            del contents[name]

    rewrite(source, out, change)
    edit_config(source, out, lambda config: config.update(num_nextn_predict_layers=0))
    assert verify(out).ok
    verdict = verify(out, source)
    only_failure(verdict, "copied_bytes", "model.layers.3.eh_proj.weight is lost", MTP_DOWN)


def test_a_modelopt_file(source, out):
    """The same numbers under ModelOpt's names: nothing of ours to hold it to, same errors."""
    expected = verify(out, source).error_by_class
    rewrite(source, out, rename(".weight_packed", ".weight"))
    rewrite(source, out, rename(".weight_global_scale", ".weight_scale_2", invert=True))
    exclude = ["lm_head", "*self_attn*", "*shared_mlp*", "*mlp.gate*", "*mlp.down_proj"]
    exclude.append("*eh_proj*")
    value = {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": exclude}
    edit_config(source, out, lambda config: config.update(quantization_config=value))
    make_foreign(out)
    verdict = verify(out, source)
    assert verdict.ok, [vars(check) for check in verdict.checks if check.status == "fail"]
    assert verdict.error_by_class == expected
    # The list in a file of its own, as older tools wrote it, and one with a gap.
    edit_config(source, out, lambda config: config.pop("quantization_config"))
    own = {"quantization": {"quant_algo": "W4A16_NVFP4", "exclude_modules": exclude[1:]}}
    (out / "hf_quant_config.json").write_text(json.dumps(own))
    verdict = verify(out)
    assert statuses(verdict, "fail") == {"vllm_matching", "sglang_matching"}
    (out / "hf_quant_config.json").write_text("{")
    assert statuses(verify(out), "fail") == {"scheme", "vllm_matching", "sglang_matching"}


def test_a_foreign_fp8_weight_is_measured_and_not_judged(source, out):
    """No manifest names a rule, so its error stays unproved, however large."""
    name = "model.layers.0.self_attn.o_proj"

    def change(contents):
        if f"{name}.weight" in contents:
            spec, _ = contents[f"{name}.weight"]
            fp8 = TensorSpec(spec.name, "F8_E4M3", spec.shape)
            contents[spec.name] = (fp8, np.zeros(spec.shape, np.uint8))
            scale = TensorSpec(f"{name}.weight_scale", "F32", (1,))
            contents = {scale.name: (scale, np.ones(1, np.float32)), **contents}
            return contents
        return None

    rewrite(source, out, change)
    make_foreign(out)
    verdict = verify(out, source)
    assert {"copied_bytes", "group_errors"} <= statuses(verdict, "pass", "not_proved")
    assert statuses(verdict, "fail") == {"vllm_matching", "sglang_matching"}
    assert any(name in each for each in check_of(verdict, "group_errors").tensors)
    assert verdict.error_by_class["attention"].relative == pytest.approx(1)  # all zeros


@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00003.safetensors"])
def test_a_manifest_that_forgets_a_file_of_the_source(source, out, name):
    path = out / MANIFEST_NAME
    manifest = json.loads(path.read_text())
    del manifest["source"][name]
    path.write_text(json.dumps(manifest))
    only_failure(verify(out, source), "source_hashes", f"{name} is not in the manifest")

"""Faults in the bytes of a checkpoint are planted and found."""

from __future__ import annotations

import json
import shutil
import tracemalloc

import numpy as np
import pytest

from hy3.checkpoint.file_hash import hash_file
from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.index import open_checkpoint
from hy3.checkpoint.manifest import MANIFEST_NAME
from hy3.checkpoint.reader import TensorReader
from hy3.quantize.check_data import scan_shard
from hy3.quantize.verify import verify
from support.planted import (
    BIAS,
    GATE,
    MTP_DOWN,
    Change,
    alter,
    check_of,
    flip_byte,
    make_foreign,
    only_failure,
    put,
    rewrite,
    statuses,
)
from support.quantized import write_contents


def test_gate_and_up_scales_differ(source, out):
    name = f"{GATE}.weight_global_scale"
    rewrite(source, out, alter(name, lambda data: np.multiply(data, 2, out=data)))
    only_failure(verify(out), "tensor_scales", name)


@pytest.mark.parametrize("value", [0.0, -2.0, np.nan, np.inf, 3.0])
def test_unusable_tensor_scale(source, out, value):
    name = f"{MTP_DOWN}.weight_global_scale"
    rewrite(source, out, alter(name, put(0, value)))
    verdict = verify(out)
    assert "tensor_scales" in statuses(verdict, "fail")
    # The stored value is also an F32 that must be finite.
    assert statuses(verdict, "fail") <= {"tensor_scales", "finite"}


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_nan_scale(source, out, code):
    name = f"{GATE}.weight_scale"
    rewrite(source, out, alter(name, put(5, code)))
    only_failure(verify(out), "scale_nan", name)


@pytest.mark.parametrize("code", [0, 1, 7, 0x80, 0x88])
def test_low_or_negative_code_in_a_file_of_ours(source, out, code):
    name = f"{MTP_DOWN}.weight_scale"
    rewrite(source, out, alter(name, put(3, code)))
    only_failure(verify(out), "scale_codes", name)


def test_codes_at_both_ends_are_fine(source, out):
    rewrite(source, out, alter(f"{GATE}.weight_scale", put(0, 8)))
    rewrite(source, out, alter(f"{GATE}.weight_scale", put(1, 126)))
    assert verify(out).ok


def fill_scales(low: int, high: int) -> Change:
    """Scales of layer 1's experts: all ``high``, but one of gate 0 is ``low``."""

    def change(contents):
        for name, (spec, data) in list(contents.items()):
            if name.startswith("model.layers.1.mlp.experts.") and name.endswith(".weight_scale"):
                data = np.full_like(data, high)
                if name == f"{GATE}.weight_scale":
                    data.reshape(-1)[0] = low
                contents[name] = (spec, data)

    return change


@pytest.mark.parametrize(
    ("low", "high", "status"),
    [
        (7, 0x77, "fail"),  # largest 240: Marlin does not rescale
        (7, 0x76, "warn"),  # largest 224: times two, 7 * 2^-9 * 2 is 14 * 2^-9 >= 2^-6
        (4, 0x76, "warn"),  # 8 * 2^-9 is just 2^-6
        (3, 0x76, "fail"),
        (1, 0x20, "warn"),  # a layer of tiny scales is lifted
        (8, 0x7E, "pass"),
        (0, 0x7E, "warn"),  # a zero stays a zero
    ],
)
def test_low_codes_in_a_foreign_file(source, out, low, high, status):
    rewrite(source, out, fill_scales(low, high))
    make_foreign(out)
    check = check_of(verify(out), "scale_codes")
    assert check.status == status, check
    assert (status == "pass") == (not check.tensors)


def test_up_counts_for_the_rescale_of_gate_and_down_does_not(source, out):
    def lift(part):
        def change(contents):
            fill_scales(7, 0x20)(contents)
            name = f"model.layers.1.mlp.experts.2.{part}.weight_scale"
            alter(name, put(0, 0x7E))(contents)

        return change

    for part, status in (("up_proj", "fail"), ("down_proj", "warn")):
        again = shutil.copytree(out, out.with_name(part))
        rewrite(source, again, lift(part))
        make_foreign(again)
        check = check_of(verify(again), "scale_codes")
        assert check.status == status


def test_a_large_tensor_passes_in_chunks(tmp_path):

    spec = TensorSpec("lm_head.weight", "BF16", (2**15, 2**10))  # 64 MiB
    write_contents(tmp_path / "model.safetensors", [(spec, np.zeros(spec.shape, np.uint16))])
    with TensorReader(open_checkpoint(tmp_path)) as reader:
        tracemalloc.start()
        findings = scan_shard(reader, "model.safetensors", lambda _: None)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert findings.file_hash == hash_file(tmp_path / "model.safetensors")
    assert peak < 40 * 2**20


def test_nan_weight(source, out):
    rewrite(source, out, alter("model.norm.weight", put(0, 0x7FC0)))
    only_failure(verify(out), "finite", "model.norm.weight")
    rewrite(source, out, alter("model.norm.weight", put(0, 0x3F80)))
    rewrite(source, out, alter(BIAS, put(2, np.inf)))
    only_failure(verify(out), "finite", BIAS)


@pytest.mark.parametrize("name", ["tokenizer.json", "model-00002-of-00003.safetensors"])
def test_changed_byte(out, name):
    flip_byte(out / name, -1)
    only_failure(verify(out), "hashes", f"{name} is not the file that was written")


def test_missing_and_extra_files(out):
    (out / "notes.txt").write_text("mine")
    verdict = verify(out)
    assert verdict.ok and statuses(verdict, "warn") == {"hashes"}
    (out / "tokenizer_config.json").unlink()
    only_failure(verify(out), "hashes", "tokenizer_config.json is missing")


@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00003.safetensors"])
def test_a_manifest_that_forgets_a_file(out, name):
    path = out / MANIFEST_NAME
    manifest = json.loads(path.read_text())
    del manifest["outputs"][name]
    path.write_text(json.dumps(manifest))
    only_failure(verify(out), "hashes", f"{name} is not in the manifest")

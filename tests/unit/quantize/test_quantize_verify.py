"""Every fault that ``verify`` claims to find is planted here and found; a sound file passes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.index import INDEX_NAME, open_checkpoint
from hy3.checkpoint.manifest import MANIFEST_NAME, read_manifest
from hy3.checkpoint.reader import TensorReader
from hy3.cli.app import app
from hy3.errors import InputError
from hy3.quantize.check_data import hash_file, scan_shard
from hy3.quantize.verdict import Verdict
from hy3.quantize.verify import bytes_to_read, verify
from support.quantized import make_quantized, write_contents, write_index, write_manifest
from support.scripted import make_random

GATE = "model.layers.1.mlp.experts.0.gate_proj"
MTP_DOWN = "model.layers.3.mlp.experts.3.down_proj"
BIAS = "model.layers.2.mlp.expert_bias"
PROVED = {
    *("files", "tensors", "dtypes", "recipe", "model_dtype", "vllm_matching", "sglang_matching"),
    *("tensor_scales", "scale_nan", "scale_codes", "finite", "hashes"),
}
FROM_SOURCE = {"copied_bytes", "group_errors", "source_hashes"}
Contents = dict[str, tuple[TensorSpec, np.ndarray]]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return make_random(tmp_path_factory.mktemp("source") / "model", seed=3, num_experts=4)


@pytest.fixture(scope="module")
def sound(source, tmp_path_factory) -> Path:
    return make_quantized(source, tmp_path_factory.mktemp("sound") / "out")


@pytest.fixture
def out(sound, tmp_path) -> Path:
    return shutil.copytree(sound, tmp_path / "out")


def rewrite(source: Path, out: Path, change: Callable[[Contents], None]) -> None:
    """Change tensors and sign the result, so that only the content is at fault."""
    parameters = read_manifest(out).parameters
    checkpoint = open_checkpoint(out)
    with TensorReader(checkpoint) as reader:
        for shard, header in checkpoint.headers.items():
            contents = {
                name: (info.spec, reader.array(name)) for name, info in header.tensors.items()
            }
            change(contents)
            write_contents(out / shard, list(contents.values()))
    write_index(out)
    write_manifest(source, out, parameters)


def edit_config(source: Path, out: Path, change: Callable[[dict], None]) -> None:
    config = json.loads((out / "config.json").read_text())
    change(config)
    (out / "config.json").write_text(json.dumps(config))
    write_manifest(source, out, read_manifest(out).parameters)


def statuses(verdict: Verdict, *wanted: str) -> set[str]:
    return {check.id for check in verdict.checks if check.status in wanted}


def only_failure(verdict: Verdict, identity: str, *names: str) -> None:
    """Exactly one check fails, and it names the culprits."""
    assert statuses(verdict, "fail") == {identity}, [vars(check) for check in verdict.checks]
    assert not verdict.ok
    check = next(check for check in verdict.checks if check.id == identity)
    for name in names:
        assert any(name in each for each in (*check.tensors, check.detail)), check


@pytest.mark.parametrize(
    ("rule", "mtp"), [("exact", "same"), ("max", "bf16"), ("four-over-six", "same")]
)
def test_a_sound_file_passes(source, tmp_path, rule, mtp):
    out = make_quantized(source, tmp_path / "out", rule, mtp)
    verdict = verify(out)
    assert verdict.ok and statuses(verdict, "pass") == PROVED
    assert statuses(verdict, "not_proved") == FROM_SOURCE
    verdict = verify(out, source)
    assert verdict.ok and statuses(verdict, "pass") == PROVED | FROM_SOURCE
    classes = {"routed_expert"} | ({"routed_expert (MTP)"} if mtp == "same" else set())
    assert set(verdict.error_by_class) == classes
    assert all(0.005 < error.relative < 0.0105 for error in verdict.error_by_class.values())


def test_exact_is_better_than_max(source, sound, tmp_path):
    exact = verify(sound, source).error_by_class["routed_expert"].relative
    plain = verify(make_quantized(source, tmp_path / "out", "max"), source)
    assert exact < 0.8 * plain.error_by_class["routed_expert"].relative


def test_progress_adds_up(source, sound):
    seen = []
    verify(sound, source, seen.append)
    assert sum(seen) == bytes_to_read(sound, source)


def drop(name: str) -> Callable[[Contents], None]:
    return lambda contents: contents.pop(name, None) and None


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
    missing = next(check for check in verdict.checks if check.id == "tensors").tensors
    assert len(missing) == 8 + 1 + 1 + 4 * 3 + 3 + 4


def test_extra_tensor(source, out):
    def change(contents):
        if BIAS in contents:
            spec = TensorSpec("model.layers.1.mlp.shared_experts.up_proj.weight", "F32", (1,))
            contents[spec.name] = (spec, np.zeros(1, np.float32))

    rewrite(source, out, change)
    only_failure(verify(out), "tensors", "is extra: engines want model.layers.1.mlp.shared_mlp")


def test_expert_bias_not_f32(source, out):
    def change(contents):
        if BIAS in contents:
            spec, data = contents[BIAS]
            half = (data.view(np.uint32) >> 16).astype(np.uint16)
            contents[BIAS] = (TensorSpec(BIAS, "BF16", spec.shape), half)

    rewrite(source, out, change)
    only_failure(verify(out), "dtypes", f"{BIAS}: BF16 [4], not F32 [4]")


def alter(name: str, edit: Callable[[np.ndarray], None]) -> Callable[[Contents], None]:
    def change(contents):
        if name in contents:
            spec, data = contents[name]
            data = data.copy()
            edit(data.reshape(-1))
            contents[name] = (spec, data)

    return change


def put(index: int, value: float) -> Callable[[np.ndarray], None]:
    return lambda data: data.__setitem__(index, value)


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


def make_foreign(out: Path) -> None:
    (out / MANIFEST_NAME).unlink()


def fill_scales(low: int, high: int) -> Callable[[Contents], None]:
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
    check = next(check for check in verify(out).checks if check.id == "scale_codes")
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
        check = next(check for check in verify(again).checks if check.id == "scale_codes")
        assert check.status == status


def test_foreign_file_is_not_held_to_our_rules(source, out):
    make_foreign(out)
    verdict = verify(out, source)
    assert verdict.ok
    unproved = {"recipe", "hashes", "group_errors", "source_hashes"}
    assert statuses(verdict, "not_proved") == unproved
    assert verdict.error_by_class["routed_expert"].relative > 0


def test_a_large_tensor_passes_in_chunks(tmp_path):
    import tracemalloc

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


def without(pattern: str) -> Callable[[dict], None]:
    return lambda config: config["quantization_config"]["ignore"].remove(pattern)


def test_ignore_list_leaves_bf16_matched_or_unmatched(source, out):
    edit_config(source, out, without("re:.*self_attn.*"))
    only_failure(verify(out), "sglang_matching", "model.layers.3.self_attn.o_proj.weight")

    def to_linear(config):
        config["quantization_config"]["config_groups"]["group_0"]["targets"] = ["Linear"]

    edit_config(source, out, to_linear)
    verdict = verify(out)
    assert statuses(verdict, "fail") == {"vllm_matching", "sglang_matching"}
    faults = next(check for check in verdict.checks if check.id == "vllm_matching").tensors
    assert len(faults) == 4 * 4 and all("is bf16 but is taken for nvfp4" in each for each in faults)


def test_bf16_mtp_experts_that_the_config_does_not_ignore(source, tmp_path):
    out = make_quantized(source, tmp_path / "out", mtp="bf16")
    edit_config(source, out, without("re:.*decoder\\.mlp\\.experts.*"))
    only_failure(verify(out), "sglang_matching", MTP_DOWN)
    edit_config(source, out, without(r"re:.*layers\.3\..*"))
    assert statuses(verify(out), "fail") == {"vllm_matching", "sglang_matching"}


def test_quantized_without_a_config(source, out):
    edit_config(source, out, lambda config: config.pop("quantization_config") and None)
    verdict = verify(out)
    assert statuses(verdict, "fail") == {"vllm_matching", "sglang_matching"}


def test_unknown_method_is_not_proved_and_a_broken_config_fails(source, out):
    edit_config(
        source, out, lambda config: config["quantization_config"].update(quant_method="fp8")
    )
    assert {"vllm_matching", "sglang_matching"} <= statuses(verify(out), "not_proved")
    broken = {"quant_method": "compressed-tensors"}
    edit_config(source, out, lambda config: config.update(quantization_config=broken))
    assert statuses(verify(out), "fail") == {"vllm_matching", "sglang_matching"}


def test_recipe_that_was_not_followed(source, tmp_path):
    out = make_quantized(source, tmp_path / "out", mtp="bf16")
    parameters = read_manifest(out).parameters
    write_manifest(source, out, parameters.__class__(**{**vars(parameters), "mtp": "same"}))
    only_failure(verify(out), "recipe", f"{MTP_DOWN}.weight is bf16")


def flip_byte(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


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


def test_unsound_files_fail_and_prove_nothing(source, out):
    path = out / "model-00001-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    verdict = verify(out, source)
    only_failure(verdict, "files", "outside the data section")
    assert statuses(verdict, "pass", "warn") == set()
    assert {check.id for check in verdict.checks} == PROVED | FROM_SOURCE


def test_damaged_manifest_fails(out):
    (out / MANIFEST_NAME).write_text("{}")
    only_failure(verify(out), "files", "schema is None")


def test_wrong_total_size_and_no_dtype_are_warnings(source, out):
    index = json.loads((out / INDEX_NAME).read_text())
    index["metadata"]["total_size"] += 1
    (out / INDEX_NAME).write_text(json.dumps(index))
    edit_config(source, out, lambda config: config.update(dtype=None, torch_dtype="float16"))
    verdict = verify(out)
    assert verdict.ok and statuses(verdict, "warn") == {"files", "model_dtype"}


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


def test_unsound_arguments(out, tmp_path):
    with pytest.raises(InputError):
        verify(tmp_path / "none")
    with pytest.raises(InputError):
        verify(out, tmp_path / "none")


def test_bf16_checkpoint(source):
    verdict = verify(source)
    assert verdict.ok
    assert {"tensors", "dtypes", "vllm_matching", "sglang_matching"} <= statuses(verdict, "pass")
    assert {"recipe", "hashes"} <= statuses(verdict, "not_proved")


RUNNER = CliRunner()


def test_command(source, sound):
    run = RUNNER.invoke(app, ["verify", str(sound), "--source", str(source), "--json"])
    assert run.exit_code == 0, run.output
    result = json.loads(run.stdout)
    assert result["schema"] == "hy3.verify/1" and result["ok"] is True
    assert {check["id"] for check in result["checks"]} == PROVED | FROM_SOURCE
    assert set(result["checks"][0]) == {"id", "status", "detail", "tensors"}
    assert 0.005 < result["error_by_class"]["routed_expert"]["relative_mse"] < 0.0105


def test_command_that_fails(out):
    flip_byte(out / "tokenizer.json", 0)
    run = RUNNER.invoke(app, ["verify", str(out)])
    assert run.exit_code == 1
    assert (
        "hashes" in run.stdout and "tokenizer.json is not the file that was written" in run.stdout
    )
    run = RUNNER.invoke(app, ["verify", str(out), "--json"])
    assert run.exit_code == 1 and json.loads(run.stdout)["ok"] is False

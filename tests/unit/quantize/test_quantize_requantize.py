"""Requantize: what other makers' forms become is what the plain quantizer makes of their values."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import hy3.quantize.stream as stream
from hy3.checkpoint.names import tensor_class
from hy3.cli.app import app
from hy3.errors import InputError
from hy3.quantize.cost import compare_costs
from hy3.quantize.dequantize import dequantize
from hy3.quantize.plan import plan_twin
from hy3.quantize.prediction import predict
from hy3.quantize.verify import verify
from support.foreign_files import (
    SCALES,
    compressed_nvfp4,
    fp8_block_inv,
    fp8_tensor,
    modelopt_nvfp4,
    write_foreign,
)
from support.planted import (
    FROM_SOURCE,
    PROVED,
    alter,
    check_of,
    only_failure,
    rewrite,
    statuses,
)
from support.quantized import write_index
from support.quantizing import no_progress, plan_of, run, run_in_child, tree
from support.scripted import make_random

LINEARS, EXPERTS = r"_proj$(?<!eh_proj)", r"experts\.\d+\.\w+_proj$"
NVFP4_GROUP = {
    "targets": ["Linear"],
    "weights": {
        "num_bits": 4,
        "type": "float",
        "symmetric": True,
        "strategy": "tensor_group",
        "group_size": 16,
        "dynamic": False,
    },
    "input_activations": None,
}
HY3_FP8 = {
    "quant_method": "fp8",
    "activation_scheme": "static",
    "ignored_layers": ["lm_head", "model.embed_tokens"],
    "kv_cache_scheme": "static",
}
FP8_BLOCKS = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
COMPRESSED = {"quant_method": "compressed-tensors", "config_groups": {"group_0": NVFP4_GROUP}}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": ["*self_attn*"]}
# name -> encoder, weights, quantization_config, scheme
MAKERS = {
    "hy3-fp8": (fp8_tensor, LINEARS, HY3_FP8, "fp8-tensor"),
    "fp8-block": (fp8_block_inv, LINEARS, FP8_BLOCKS, "fp8-block-inv"),
    "modelopt": (modelopt_nvfp4, EXPERTS, MODELOPT, "modelopt-nvfp4-w4a16"),
    "compressed": (compressed_nvfp4, EXPERTS, COMPRESSED, "nvfp4-w4a16"),
}
TENSOR_SCALES = ("weight_global_scale", "weight_scale_2", *SCALES)
GATE = "model.layers.1.mlp.experts.0.gate_proj"


pytestmark = pytest.mark.usefixtures("pictures_once")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough that a matrix has several blocks of 128, some of them cut."""
    folder = tmp_path_factory.mktemp("original") / "model"
    return make_random(folder, seed=12, hidden_size=192, num_experts=2)


@pytest.fixture(scope="module", params=MAKERS)
def made(
    request: pytest.FixtureRequest, original: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Path]:
    """The maker's name, its file, and the same values in BF16."""
    folder = tmp_path_factory.mktemp(request.param)
    encode, pattern, config, _ = MAKERS[request.param]
    write_foreign(original, folder / "foreign", folder / "decoded", encode, pattern, config)
    if request.param == "hy3-fp8":
        scales = {
            f"model.layers.{layer}.self_attn.{which}_cache.scale": torch.ones(1)
            for layer in range(4)
            for which in "kv"
        }
        save_file(scales, folder / "foreign" / "kv_cache_scales.safetensors")
        write_index(folder / "foreign")
    return request.param, folder / "foreign", folder / "decoded"


def tensors_of(folder: Path) -> dict[str, tuple[torch.dtype, bytes]]:
    found = {}
    for path in folder.glob("*.safetensors"):
        for name, tensor in load_file(path).items():
            found[name] = (tensor.dtype, tensor.flatten().view(torch.uint8).numpy().tobytes())
    return found


def test_the_bytes_are_those_of_the_decoded_values(
    made: tuple[str, Path, Path], original: Path, tmp_path: Path
) -> None:
    maker, foreign, decoded = made
    stored = tensors_of(foreign)
    suffix = next(each for each in TENSOR_SCALES if f"{GATE}.{each}" in stored)
    assert stored[f"{GATE}.{suffix}"] != stored[f"{GATE}.{suffix}".replace("gate", "up")]
    done = run(foreign, tmp_path / "out", decodes=True)
    run(decoded, tmp_path / "plain")
    assert tensors_of(tmp_path / "out") == tensors_of(tmp_path / "plain")
    for name in ("config.json", "model.safetensors.index.json"):
        ours, plain = ((tmp_path / each / name).read_text() for each in ("out", "plain"))
        assert json.loads(ours) == json.loads(plain)
    failed = {
        check.id for check in verify(tmp_path / "out", original).checks if check.status == "fail"
    }
    # What was made is not from the original's bytes, and verify says so; all else holds.
    assert failed <= {"source_hashes", "group_errors", "copied_bytes"}
    manifest = json.loads((tmp_path / "out" / "hy3_manifest.json").read_text())
    assert manifest["source_scheme"] == MAKERS[maker][3]
    assert {path.name for path in foreign.glob("*.safetensors")} <= manifest["source"].keys()
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"quantized itself ({MAKERS[maker][3]})" in card
    assert f"rounded {done.rounded_values} values" in card and done.rounded_values
    assert "quantized itself" not in (tmp_path / "plain" / "README.md").read_text()


def test_a_dry_run_counts_the_decoding(
    made: tuple[str, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of BF16 by what they are stored in and what they become; all of them are counted."""
    monkeypatch.setattr("hy3.quantize.prediction._COMPUTE_SECONDS", 0.02)
    monkeypatch.setattr("hy3.quantize.prediction._WRITE_BYTES", 2**20)
    _, foreign, decoded = made
    found = predict(plan_of(foreign, decodes=True), tmp_path / "out", 1)
    plain = predict(plan_of(decoded), tmp_path / "out", 1)
    assert found.read.nbytes < plain.read.nbytes and found.write.nbytes == plain.write.nbytes
    to_nvfp4 = [term for term in found.compute if term.name.endswith("to nvfp4")]
    (nvfp4,) = [term for term in plain.compute if term.name == "nvfp4"]
    assert [term.nbytes for term in to_nvfp4] == [nvfp4.nbytes]
    assert sum(term.nbytes for term in found.compute) == sum(term.nbytes for term in plain.compute)
    assert all(term.seconds > 0 for term in found.compute)


def test_one_worker_or_four_and_a_rerun(made: tuple[str, Path, Path], tmp_path: Path) -> None:
    _, foreign, _ = made
    run(foreign, tmp_path / "one", workers=1, decodes=True)
    run(foreign, tmp_path / "four", workers=4, decodes=True)
    assert tree(tmp_path / "one") == tree(tmp_path / "four")
    again = run(foreign, tmp_path / "one", decodes=True)
    assert again.stats is None and again.rounded_values is None


def test_killed_and_run_again(made: tuple[str, Path, Path], tmp_path: Path) -> None:
    _, foreign, _ = made
    whole = run(foreign, tmp_path / "whole", workers=1, decodes=True)
    for after in (1, 8, 11):
        out = tmp_path / f"killed-{after}"

        def prepare(after: int = after) -> None:
            real, calls = stream.encode, iter(range(after))

            def dying(*arguments):
                if next(calls, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments)

            stream.encode = dying

        status = run_in_child(foreign, out, prepare, workers=1, decodes=True)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert not (out / "hy3_manifest.json").exists()
        assert run(foreign, out, decodes=True).rounded_values == whole.rounded_values
        assert tree(out) == tree(tmp_path / "whole")


def edit(folder: Path, name: str, value: torch.Tensor) -> None:
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        if name in tensors:
            save_file(tensors | {name: value}, path)


@pytest.mark.parametrize("damage", ["nan", "cut off", "of another shape", "missing"])
def test_a_damaged_scale_is_named(
    made: tuple[str, Path, Path], tmp_path: Path, damage: str
) -> None:
    _, foreign, _ = made
    folder = tmp_path / "damaged"
    shutil.copytree(foreign, folder)
    stored = tensors_of(folder)
    scale = next(f"{GATE}.{each}" for each in SCALES if f"{GATE}.{each}" in stored)
    path = next(path for path in folder.glob("*.safetensors") if scale in load_file(path))
    value, named = load_file(path)[scale], scale
    if damage == "nan":
        bad = value.float()
        bad.view(-1)[0] = float("nan")
        edit(folder, scale, bad.to(value.dtype))
    elif damage == "of another shape":
        edit(folder, scale, value.repeat(3, *[1] * (value.dim() - 1)))
    elif damage == "missing":
        tensors = load_file(path)
        del tensors[scale]
        named = scale.removesuffix("_inv")  # nothing is left that tells the maker's name of it
        save_file(tensors, path)
        write_index(folder)
    else:
        path.write_bytes(path.read_bytes()[:-1])
        named = path.name
    with pytest.raises(InputError) as caught:
        run(folder, tmp_path / "out", decodes=True)
    assert named in str(caught.value), caught.value
    assert not (tmp_path / "out" / "hy3_manifest.json").exists()


def test_the_verb_says_what_it_cost(
    made: tuple[str, Path, Path], original: Path, tmp_path: Path
) -> None:
    _, foreign, _ = made
    command = ["requantize", str(foreign), str(tmp_path / "out"), "--json"]
    found = CliRunner().invoke(app, [*command, "--source", str(original)])
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    assert result["schema"] == "hy3.requantize/1" and result["weights"] > 0
    for cost in result["costs"].values():
        assert cost["after"] is None or 0 < cost["after"] < 0.03, cost
    assert result["costs"]["routed_expert"]["before"] < result["costs"]["routed_expert"]["after"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def relative_errors(folder: Path, original: Path) -> dict[str, float]:
    """By class, of the BF16 weights in ``folder`` beside those of ``original``, by plain torch."""
    sums: dict[str, tuple[float, float]] = {}
    for path in sorted(original.glob("*.safetensors")):
        found = load_file(folder / path.name)
        for name, wanted in load_file(path).items():
            if name in found and not torch.equal(found[name], wanted):
                kind = tensor_class(name) + (" (MTP)" if name.startswith("model.layers.3.") else "")
                error, energy = sums.get(kind, (0.0, 0.0))
                error += float((found[name].double() - wanted.double()).square().sum())
                sums[kind] = error, energy + float(wanted.double().square().sum())
    return {kind: error / energy for kind, (error, energy) in sums.items()}


def test_what_is_decoded_and_kept_has_its_cost_too(
    made: tuple[str, Path, Path], original: Path, tmp_path: Path
) -> None:
    maker, foreign, decoded = made
    run(foreign, tmp_path / "out", decodes=True)
    costs = compare_costs(foreign, tmp_path / "out", original, no_progress)
    after = {cost.name: cost.after.relative for cost in costs if cost.after}
    experts = {"routed_expert", "routed_expert (MTP)"}
    expected = {
        kind: error
        for kind, error in relative_errors(decoded, original).items()
        if kind not in experts
    }
    assert ("attention" in expected) == (MAKERS[maker][1] == LINEARS)
    assert after.keys() == expected.keys() | experts
    assert {kind: after[kind] for kind in expected} == pytest.approx(expected)


def test_it_is_proved_against_the_file_that_it_was_made_from(
    made: tuple[str, Path, Path], tmp_path: Path
) -> None:
    _, foreign, _ = made
    out = tmp_path / "out"
    run(foreign, out, decodes=True)
    verdict = verify(out, foreign)
    assert verdict.ok and statuses(verdict, "pass") == PROVED | FROM_SOURCE
    twin = tmp_path / "twin"
    dequantize(plan_twin(foreign), twin, 2, no_progress)
    copied = check_of(verify(twin, foreign), "copied_bytes")
    assert copied.status == "pass" and int(copied.detail.split()[0]) == len(tensors_of(twin))

    packed, kept = f"{GATE}.weight_packed", "model.layers.1.self_attn.k_proj.weight"
    rewrite(foreign, out, alter(kept, lambda data: data.__setitem__(0, data[0] ^ 1)))
    only_failure(verify(out, foreign), "copied_bytes", f"{kept} differs")
    rewrite(foreign, out, alter(kept, lambda data: data.__setitem__(0, data[0] ^ 1)))
    rewrite(foreign, out, alter(packed, lambda data: data.__setitem__(slice(None), 0)))
    only_failure(verify(out, foreign), "group_errors", GATE)


def test_each_verb_refuses_the_other_ones_source(
    made: tuple[str, Path, Path], original: Path, tmp_path: Path
) -> None:
    _, foreign, _ = made
    with pytest.raises(InputError, match="holds bf16 weights") as caught:
        run(original, tmp_path / "out", decodes=True)
    assert "hy3 quantize" in caught.value.hint
    with pytest.raises(InputError, match="not BF16 alone") as caught:
        run(foreign, tmp_path / "out")
    assert "hy3 requantize" in caught.value.hint

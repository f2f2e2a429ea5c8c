"""The judge of the quantizers' files against planted faults, and the measuring of a child."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

from child_usage import run_measured  # noqa: E402
from peers_judge import judge  # noqa: E402

VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
ROWS, COLUMNS = 4, 32
MTP = "model.layers.2."


def random_weight(seed, tensor_scale):
    """An NVFP4 weight and what it stands for, written out number by number."""
    random = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (ROWS, COLUMNS), generator=random)
    scales = torch.tensor([1.0, 2.0, 0.5, 448.0])[
        torch.randint(0, 4, (ROWS, COLUMNS // 16), generator=random)
    ]
    weight = torch.empty(ROWS, COLUMNS)
    for row in range(ROWS):
        for column in range(COLUMNS):
            code = int(codes[row, column])
            value = VALUES[code % 8] * (-1 if code >= 8 else 1)
            weight[row, column] = value * float(scales[row, column // 16]) * tensor_scale
    packed = torch.empty(ROWS, COLUMNS // 2, dtype=torch.uint8)
    for column in range(COLUMNS // 2):
        packed[:, column] = codes[:, 2 * column] + 16 * codes[:, 2 * column + 1]
    return weight, packed, scales.to(torch.float8_e4m3fn)


def write_pair(folder, scales, layout="compressed-tensors"):
    """Source and output folders of one expert a layer, in the trunk and in the MTP layer."""
    source, out = {}, {}
    for layer in (1, 2):
        for seed, part in enumerate(("gate", "up", "down")):
            module = f"model.layers.{layer}.mlp.experts.0.{part}_proj"
            weight, packed, blocks = random_weight(10 * layer + seed, scales[part])
            source[f"{module}.weight"] = weight.bfloat16()
            out[f"{module}.weight_scale"] = blocks
            if layout == "modelopt":
                out[f"{module}.weight"] = packed
                out[f"{module}.weight_scale_2"] = torch.tensor(scales[part])
            else:
                out[f"{module}.weight_packed"] = packed
                out[f"{module}.weight_global_scale"] = torch.tensor([1 / scales[part]])
    for name in ("model.norm.weight", f"{MTP}eh_proj.weight"):
        source[name] = out[name] = torch.arange(8).bfloat16()
    (folder / "source").mkdir()
    (folder / "out").mkdir()
    save_file(source, folder / "source" / "model.safetensors")
    return out


def verdict(folder, out):
    save_file(out, folder / "out" / "model.safetensors")
    return judge(folder / "source", folder / "out", mtp_layer=2)


EQUAL = {"gate": 0.25, "up": 0.25, "down": 0.125}


@pytest.mark.parametrize("layout", ["compressed-tensors", "modelopt"])
def test_a_faultless_file(tmp_path, layout):
    found = verdict(tmp_path, write_pair(tmp_path, EQUAL, layout))
    assert found["relative_error"] == found["served_relative_error"] == 0
    assert (found["pairs"], found["pairs_agreeing"], found["scale_ratio"]) == (2, 2, [1, 1])
    assert (found["experts"], found["experts_missing"]) == (6, 0)
    assert found["mtp_tensors"] == found["mtp_kept"] == 4
    assert found["others"] == found["others_identical"] == 2


def test_gate_and_up_of_different_scales(tmp_path):
    scales = EQUAL | {"up": 0.125}
    found = verdict(tmp_path, write_pair(tmp_path, scales))
    # Up is served twice as large, so its error is its own energy.
    energy = {
        part: float(random_weight(10 + seed, scales[part])[0].double().square().sum())
        for seed, part in enumerate(scales)
    }
    assert found["relative_error"] == 0
    assert found["served_relative_error"] == pytest.approx(energy["up"] / sum(energy.values()))
    assert (found["pairs_agreeing"], found["scale_ratio"]) == (0, [2, 2])


def test_missing_and_changed_tensors(tmp_path):
    out = write_pair(tmp_path, EQUAL)
    out["model.norm.weight"] = out["model.norm.weight"].float()
    out = {name: tensor for name, tensor in out.items() if not name.startswith(MTP)}
    found = verdict(tmp_path, out)
    assert (found["experts"], found["experts_missing"], found["mtp_kept"]) == (3, 3, 0)
    assert found["others_identical"] == 0


def test_a_wrong_nibble_shows_in_the_error(tmp_path):
    out = write_pair(tmp_path, EQUAL)
    out["model.layers.1.mlp.experts.0.down_proj.weight_packed"][0, 0] ^= 0x80
    assert verdict(tmp_path, out)["relative_error"] > 0


def test_a_child_is_measured(tmp_path):
    code = "import time; kept = b'x' * 200_000_000; print('done'); time.sleep(0.3)"
    usage = run_measured([sys.executable, "-c", code], tmp_path / "log", timeout_s=30)
    assert (usage.exit_status, usage.output) == (0, "done\n")
    assert 2e8 < usage.peak_anonymous_bytes <= usage.peak_resident_bytes < 4e8
    assert usage.wall_s >= 0.3 > usage.cpu_s > 0


def test_a_child_that_fails_or_hangs(tmp_path):
    failed = run_measured([sys.executable, "-c", "import no_such"], tmp_path / "log", 30)
    assert failed.exit_status == 1 and "ModuleNotFoundError" in failed.output
    sleeping = [sys.executable, "-c", "import time; time.sleep(30)"]
    assert run_measured(sleeping, tmp_path / "log", 0.1).exit_status == -9

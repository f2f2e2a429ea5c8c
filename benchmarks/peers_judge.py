"""What a quantizer made of a checkpoint, judged alike for every maker: see ``judge``.

Independent of hy3's own reader and codec: files are read by safetensors, numbers by torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

_EXPERT = re.compile(r"(.+\.mlp\.experts\.\d+)\.(gate|up|down)_proj\.weight")
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
GROUP = 16


class Folder:
    """The tensors of all safetensors files of a folder, by name."""

    def __init__(self, folder: Path) -> None:
        self._files = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                self._files |= dict.fromkeys(file.keys(), path)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def read(self, name: str) -> Tensor:
        """One tensor in the dtype that it is stored in."""
        with safe_open(self._files[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor


class PackedWeight:
    """An NVFP4 weight of either layout: codes times group scales, and its tensor scale."""

    def __init__(self, folder: Folder, module: str) -> None:
        if f"{module}.weight_packed" in folder:  # compressed-tensors stores the reciprocal
            packed = folder.read(f"{module}.weight_packed")
            self.tensor_scale = 1 / folder.read(f"{module}.weight_global_scale").double().item()
        else:
            packed = folder.read(f"{module}.weight")
            self.tensor_scale = folder.read(f"{module}.weight_scale_2").double().item()
        assert packed.dtype == torch.uint8, f"{module} is {packed.dtype}"
        codes = torch.stack((packed & 15, packed >> 4), -1).reshape(packed.shape[0], -1, GROUP)
        scales = folder.read(f"{module}.weight_scale").float()
        self.unscaled = (_E2M1[codes.int()] * scales[..., None]).flatten(1)

    def values(self, tensor_scale: float) -> Tensor:
        """FP32 [out, in] under a tensor scale, its own or another's."""
        return self.unscaled * tensor_scale


def judge(source: Path, out: Path, mtp_layer: int) -> dict[str, Any]:
    """Compare a quantized checkpoint with its BF16 source.

    Returns:
        relative_error: squared error of the trunk's routed experts over their squared weights,
            each matrix under its own tensor scale (some makers drop the MTP layer's experts)
        served_relative_error: the same when up is read under gate's tensor scale, as vLLM does
        experts, experts_missing: matrices judged, and matrices that OUT lacks
        pairs, pairs_agreeing: gate and up pairs, and those of one tensor scale
        scale_ratio: the least and the largest gate scale over up scale
        mtp_tensors, mtp_kept: of the source's MTP layer, all and those that OUT holds in any form
        others, others_identical: tensors that are no experts, and those copied bit for bit
    """
    before, after = Folder(source), Folder(out)
    mtp = {name for name in before if name.startswith(f"model.layers.{mtp_layer}.")}
    error = served = energy = 0.0
    count = missing = 0
    ratios = []
    for name in before:
        found = _EXPERT.fullmatch(name)
        if not found:
            continue
        if not _holds(after, name):
            missing += 1
            continue
        expert, part = found.groups()
        count += 1
        packed = PackedWeight(after, f"{expert}.{part}_proj")
        gate_scale = packed.tensor_scale
        if part == "up":
            gate_scale = PackedWeight(after, f"{expert}.gate_proj").tensor_scale
            ratios.append(gate_scale / packed.tensor_scale)
        if name in mtp:
            continue
        weight = before.read(name).float()
        error += _squares(weight - packed.values(packed.tensor_scale))
        served += _squares(weight - packed.values(gate_scale))
        energy += _squares(weight)
    others = [name for name in before if not _EXPERT.fullmatch(name)]
    return {
        "relative_error": error / energy,
        "served_relative_error": served / energy,
        "experts": count,
        "experts_missing": missing,
        "pairs": len(ratios),
        "pairs_agreeing": sum(ratio == 1 for ratio in ratios),
        "scale_ratio": [min(ratios), max(ratios)],
        "mtp_tensors": len(mtp),
        "mtp_kept": sum(_holds(after, name) for name in mtp),
        "others": len(others),
        "others_identical": sum(_identical(before, after, name) for name in others),
    }


def _holds(folder: Folder, name: str) -> bool:
    return name in folder or name.replace(".weight", ".weight_packed") in folder


def _identical(before: Folder, after: Folder, name: str) -> bool:
    if name not in after:
        return False
    one, other = before.read(name), after.read(name)
    return one.dtype == other.dtype and torch.equal(one, other)


def _squares(values: Tensor) -> float:
    return float(values.double().square().sum())

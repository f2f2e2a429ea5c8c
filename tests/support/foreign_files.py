"""Checkpoints as other makers write them, and what they hold, decoded without any code of ours."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.quantized import write_index

FP4_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
SCALES = ("weight_scale", "weight_scale_inv")
Parts = dict[str, Tensor]  # suffix of the module -> tensor
Encode = Callable[[Tensor], Parts]


def fp8_tensor(weight: Tensor) -> Parts:
    """As tencent/Hy3-FP8: one scale for a matrix, and one of its activations."""
    scale = (weight.abs().max() / 448).reshape(1)
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor([0.02])}


def fp8_block_inv(weight: Tensor, size: int = 128) -> Parts:
    """As DeepSeek: a scale for each block of 128 x 128, those at the edges cut."""
    codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    down, across = (-(-length // size) for length in weight.shape)
    scales = torch.empty(down, across)
    for i in range(down):
        for j in range(across):
            place = np.s_[i * size : (i + 1) * size, j * size : (j + 1) * size]
            scales[i, j] = weight[place].abs().max() / 448
            codes[place] = (weight[place] / scales[i, j]).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scales}


def _nvfp4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Packed codes, group scales and the multiplier, each matrix under a scale of its own."""
    groups = weight.unflatten(1, (-1, 16))
    multiplier = weight.abs().max() / 2688
    scales = (groups.abs().amax(2) / 6 / multiplier).to(torch.float8_e4m3fn)
    steps = (scales.float() * multiplier).clamp(min=1e-30).unsqueeze(2)
    magnitudes = (groups.abs() / steps).unsqueeze(3).sub(FP4_VALUES).abs().argmin(3)
    codes = (magnitudes | (groups < 0).long() << 3).flatten(1).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, scales, multiplier


def compressed_nvfp4(weight: Tensor) -> Parts:
    packed, scales, multiplier = _nvfp4(weight)
    divisor = (1 / multiplier).reshape(1)
    return {"weight_packed": packed, "weight_scale": scales, "weight_global_scale": divisor}


def modelopt_nvfp4(weight: Tensor) -> Parts:
    packed, scales, multiplier = _nvfp4(weight)
    return {"weight": packed, "weight_scale": scales, "weight_scale_2": multiplier.reshape(())}


def decode_parts(parts: Parts) -> Tensor:
    """BF16 of the parts of one weight, by plain torch in fp32, rounded once."""
    (scale,) = (parts[name].float() for name in SCALES if name in parts)
    if "weight_packed" not in parts and parts["weight"].dtype != torch.uint8:
        codes = parts["weight"].float()
        if scale.numel() > 1:
            rows, columns = codes.shape
            scale = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
        return (codes * scale).bfloat16()
    packed = parts.get("weight_packed", parts.get("weight"))
    if "weight_global_scale" in parts:
        steps = scale / parts["weight_global_scale"]
    else:
        steps = scale * parts["weight_scale_2"]
    codes = torch.stack((packed & 15, packed >> 4), 2).flatten(1).long()
    values = FP4_VALUES[codes & 7] * (1 - 2.0 * (codes >> 3))
    return (values.unflatten(1, (-1, 16)) * steps.unsqueeze(2)).flatten(1).bfloat16()


def write_foreign(
    original: Path, foreign: Path, decoded: Path, encode: Encode, pattern: str, config: dict
) -> None:
    """``foreign`` from a BF16 checkpoint, and what it holds as the BF16 checkpoint ``decoded``.

    Args:
        encode: makes the parts of each weight in whose module ``pattern`` is found
        config: the quantization_config
    """
    for folder in (foreign, decoded):
        folder.mkdir(parents=True)
        for path in original.iterdir():
            if path.suffix != ".safetensors" and not path.name.endswith(".index.json"):
                shutil.copy(path, folder / path.name)
    for path in sorted(original.glob("*.safetensors")):
        stored, plain = {}, {}
        for name, tensor in load_file(path).items():
            module = name.removesuffix(".weight")
            if not re.search(pattern, module):
                stored[name] = plain[name] = tensor
                continue
            parts = encode(tensor.float())
            stored |= {f"{module}.{suffix}": part for suffix, part in parts.items()}
            plain[name] = decode_parts(parts)
        save_file(stored, foreign / path.name)
        save_file(plain, decoded / path.name)
    raw = json.loads((foreign / "config.json").read_text())
    raw["quantization_config"] = config
    (foreign / "config.json").write_text(json.dumps(raw))
    for folder in (foreign, decoded):
        write_index(folder)

"""Where the scale search of arrays runs: on the CPU, or on a GPU and back, with the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hy3.errors import EnvironmentFault, InputError
from hy3.kernels.scale_search import Floats, Quantized, quantize_bits
from hy3.kernels.scale_search_tensor import quantize_tensor

CHOICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Device:
    """A choice that has been made, and why."""

    name: str  # as torch calls it
    reason: str


CPU = Device("cpu", "as asked")


def choose_device(choice: str) -> Device:
    """Resolve ``--device``: auto takes the GPU where there is one that Triton can compile for.

    Raises:
        InputError: no such choice
        EnvironmentFault: cuda was asked for and is not there
    """
    if choice not in CHOICES:
        hint = f"known are: {', '.join(CHOICES)}"
        raise InputError(f"{choice!r} is unknown", hint=hint, where="--device")
    if choice == "cpu":
        return CPU
    lack = _what_cuda_lacks()
    if lack is None:
        return Device("cuda", torch.cuda.get_device_name())
    if choice == "auto":
        return Device("cpu", lack)
    raise EnvironmentFault(lack, hint="use --device cpu: the bytes are the same", where="--device")


def _what_cuda_lacks() -> str | None:
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    if find_spec("triton") is None:
        return "Triton is not installed"
    return None


def quantize_bits_on(
    device: Device,
    bits: NDArray[np.uint16],
    t: float,
    rule: str,
    column_weights: Floats | None = None,
) -> Quantized:
    """``quantize_bits`` on a device; arguments and result are arrays here."""
    if device.name == "cpu":
        return quantize_bits(bits, t, rule, column_weights)
    weight = torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch.bfloat16)
    weights = None if column_weights is None else torch.from_numpy(column_weights)
    result = quantize_tensor(
        weight.to(device.name), t, rule, None if weights is None else weights.to(device.name)
    )
    return Quantized(
        packed=_fetch(result.packed),
        scales=_fetch(result.scales),
        errors=_fetch(result.errors),
        max_errors=_fetch(result.max_errors),
        energies=_fetch(result.energies),
        shifts=_fetch(result.shifts),
    )


def _fetch(tensor: Tensor) -> NDArray[np.generic]:
    return tensor.cpu().numpy()

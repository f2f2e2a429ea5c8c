"""Faults planted into a quantized checkpoint's experts, which ``vllm_agreement`` must see."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hy3.checkpoint.header import TensorSpec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.planted import Contents, rewrite


def _map_ending(
    contents: Contents, ending: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    for name, (spec, data) in contents.items():
        if name.endswith(ending):
            contents[name] = (spec, change(data))


def invert_global_scale(contents: Contents) -> None:
    """Store the tensor scale where its reciprocal belongs."""
    _map_ending(contents, ".weight_global_scale", lambda data: 1 / data)


def swap_nibbles(contents: Contents) -> None:
    """Exchange neighbouring weights."""
    _map_ending(contents, ".weight_packed", lambda data: (data >> 4) | (data << 4))


def exchange_gate_and_up(contents: Contents) -> Contents:
    """Give each expert's gate the weights of its up and the other way round."""
    renamed: Contents = {}
    for name, (spec, data) in contents.items():
        if ".mlp.experts." in name:
            swapped = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
            parts = [swapped.get(part, part) for part in name.split(".")]
            name = ".".join(parts)
        renamed[name] = (TensorSpec(name, spec.dtype, spec.shape), data)
    return renamed


FAULTS = {
    "global scale inverted": invert_global_scale,
    "nibbles swapped": swap_nibbles,
    "gate and up exchanged": exchange_gate_and_up,
}


def plant(source: Path, checkpoint: Path, out: Path, fault: str) -> Path:
    """A copy of ``checkpoint``, made from ``source``, with one fault in every expert."""
    shutil.copytree(checkpoint, out)
    rewrite(source, out, FAULTS[fault])
    return out

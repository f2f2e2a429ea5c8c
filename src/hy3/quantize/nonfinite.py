"""NaN and infinities in a tensor: none may reach an encoder, and a report says how many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hy3.kernels.scale_search import largest_magnitude


@dataclass(frozen=True)
class Nonfinite:
    """How many values of a tensor are not finite."""

    nans: int = 0
    infinities: int = 0

    def __str__(self) -> str:
        return f"{self.nans} NaN and {self.infinities} infinite values"


def all_finite(chunk: memoryview, dtype: str) -> bool:
    """Whether a piece of a tensor is finite; dtypes other than BF16 and F32 are taken to be."""
    if dtype == "BF16":
        return bool(np.isfinite(largest_magnitude(np.frombuffer(chunk, np.uint16))))
    return dtype != "F32" or bool(np.isfinite(np.frombuffer(chunk, np.float32)).all())


def count_nonfinite(chunks: Iterable[memoryview], dtype: str) -> Nonfinite:
    """Over the pieces of a BF16 or F32 tensor."""
    nans = infinities = 0
    for chunk in chunks:
        if dtype == "BF16":
            values = (np.frombuffer(chunk, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(chunk, np.float32)
        nans += int(np.isnan(values).sum())
        infinities += int(np.isinf(values).sum())
    return Nonfinite(nans, infinities)

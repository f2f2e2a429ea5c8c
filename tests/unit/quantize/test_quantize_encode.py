"""One weight in each format: tensors of the stored shapes, and sums that a plain one confirms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hy3.checkpoint.forms import stored_specs
from hy3.checkpoint.header import TensorSpec
from hy3.quantize.encode import encode
from support.distributions import make_weight
from support.foreign_decoder import decode, decode_fp8

WEIGHT = make_weight("gauss", 4096)[:, :192]
BITS = WEIGHT.contiguous().view(torch.int16).numpy().view(np.uint16)


def decoded(form: str, tensors: tuple[np.ndarray, ...]) -> torch.Tensor:
    parts = [torch.from_numpy(each) for each in tensors]
    if form == "nvfp4":
        return decode(*parts[:2], float(parts[2])).float()
    return decode_fp8(*parts, block=form == "fp8-block")


@pytest.mark.parametrize("form", ["nvfp4", "fp8", "fp8-block"])
def test_shapes_and_sums(form: str) -> None:
    largest = float(WEIGHT.abs().max())
    encoded = encode(form, BITS, largest, "exact")
    specs = stored_specs(TensorSpec("p.weight", "BF16", tuple(WEIGHT.shape)), form)
    assert [each.shape for each in encoded.tensors] == [spec.shape for spec in specs]
    assert [each.nbytes for each in encoded.tensors] == [spec.nbytes for spec in specs]
    error = (WEIGHT.double() - decoded(form, encoded.tensors).double()).square().sum()
    assert encoded.stats.error == pytest.approx(float(error), rel=1e-6)
    assert encoded.stats.energy == pytest.approx(float(WEIGHT.double().square().sum()), rel=1e-6)
    if form != "nvfp4":  # there is one rule, and no scale is searched
        assert encoded.stats.max_error == encoded.stats.error and not encoded.stats.shifts
        assert 0.0003 < encoded.stats.relative_error < 0.001

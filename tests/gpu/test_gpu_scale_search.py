"""The Triton scale search gives the oracle's bytes.

It needs a CUDA device; where Triton is installed without one, ``TRITON_INTERPRET=1`` runs the same
kernel in Triton's interpreter on small inputs.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from hy3.kernels.scale_search_tensor import QuantizedTensor, quantize_tensor
from hy3.nvfp4.scales import RULES, tensor_scale
from hy3.nvfp4.tensor import NvFp4Tensor
from support.distributions import (
    EDGES,
    NAMES,
    WEIGHT_KINDS,
    make_column_weights,
    make_weight,
)

pytest.importorskip("triton", reason="Triton is not installed")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not torch.cuda.is_available() and not INTERPRETED:
    pytest.skip(
        "no CUDA device (TRITON_INTERPRET=1 interprets the kernel)", allow_module_level=True
    )

DEVICE = "cpu" if INTERPRETED else "cuda"
GROUPS = 256 if INTERPRETED else 16_384
FIELDS = ("packed", "scales", "errors", "max_errors", "energies", "shifts")


def differing(one: QuantizedTensor, other: QuantizedTensor) -> list[str]:
    """The fields that differ in shape or in any byte."""
    pairs = {f: (getattr(one, f).cpu(), getattr(other, f).cpu()) for f in FIELDS}
    return [
        field
        for field, (a, b) in pairs.items()
        if a.shape != b.shape or a.numpy().tobytes() != b.numpy().tobytes()
    ]


def check(
    weight: Tensor, rule: str, t: float | None = None, column_weights: Tensor | None = None
) -> QuantizedTensor:
    t = tensor_scale(float(weight.float().abs().max())) if t is None else t
    on_device = None if column_weights is None else column_weights.to(DEVICE)
    fast = quantize_tensor.named("triton")(weight.to(DEVICE), t, rule, on_device)
    assert differing(fast, quantize_tensor.oracle(weight, t, rule, column_weights)) == []
    return fast


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NAMES + EDGES)
def test_gpu_bytes_equal_the_oracle(name: str, rule: str) -> None:
    check(make_weight(name, GROUPS, seed=7), rule)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", WEIGHT_KINDS)
@pytest.mark.parametrize("name", NAMES + EDGES)
def test_gpu_bytes_equal_the_oracle_under_column_weights(name: str, kind: str, rule: str) -> None:
    weight = make_weight(name, 64 if INTERPRETED else 2048, seed=8)
    check(weight, rule, column_weights=make_column_weights(kind, weight.shape[1]))


def test_column_weights_need_no_alignment_on_gpu() -> None:
    weight = make_weight("gauss", 256)[:, :48]
    column_weights = make_column_weights("spread", 64)[3:51]
    assert check(weight, "exact", None, column_weights).shifts.sum() == weight.numel() / 16


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("power", [-126, -4, 0, 4, 126])
def test_any_tensor_scale_on_gpu(power: int, rule: str) -> None:
    """A joint scale may be far above what this matrix alone needs, or saturate it."""
    check(make_weight("lattice", 256), rule, 2.0**power)
    check(make_weight("patterns", 256), rule, 2.0**126)


@pytest.mark.parametrize("shape", [(1, 16), (3, 48), (5, 208), (2, 2048)])
def test_any_number_of_groups_on_gpu(shape: tuple[int, int]) -> None:
    rows, columns = shape
    check(make_weight("gauss", 256).flatten()[: rows * columns].reshape(shape), "exact")


def test_a_view_is_read_in_its_own_order_on_gpu() -> None:
    wide = make_weight("gauss", 1024)
    check(wide[::2, 64:128], "exact")
    check(wide.T[:, :16], "exact")


def test_zero_groups_on_gpu_get_the_agreed_code() -> None:
    weight = make_weight("gauss", 128).clone()
    weight[0, :16], weight[1, 16:32] = 0.0, -0.0
    result = check(weight, "exact")
    assert result.scales[0, 0] == 0x20 and result.scales[1, 1] == 0x20
    assert not result.packed[0, :8].any() and not result.packed[1, 8:16].any()


@pytest.mark.skipif(INTERPRETED, reason="dispatch asks for a CUDA tensor")
def test_a_cuda_tensor_goes_to_triton() -> None:
    weight = make_weight("gauss", 256)
    assert quantize_tensor(weight.cuda(), 1.0, "exact").packed.is_cuda
    assert [twin.name for twin in quantize_tensor.twins if twin.when(weight, 1.0, "exact")] == []


@pytest.mark.parametrize("name", NAMES + EDGES)
def test_compressed_tensors_decodes_what_the_gpu_wrote(name: str) -> None:
    decoder = pytest.importorskip("support.foreign_decoder", reason="compressed-tensors is absent")
    weight = make_weight(name, GROUPS)
    t = tensor_scale(float(weight.float().abs().max()))
    result = quantize_tensor.named("triton")(weight.to(DEVICE), t, "exact")
    packed, scales = result.packed.cpu(), result.scales.cpu()
    ours = NvFp4Tensor(packed, scales, 1.0 / t)
    assert torch.equal(ours.dequantize(), decoder.decode(packed, scales, 1.0 / t))
    in_units_of_t = NvFp4Tensor(packed, scales, 1.0).dequantize(torch.float32)
    difference = weight.double() / t - in_units_of_t.double()
    errors = difference.square().unflatten(-1, (-1, 16)).sum(-1)
    torch.testing.assert_close(result.errors.cpu().double(), errors, rtol=1e-6, atol=1e-30)


def test_a_planted_difference_is_seen_on_gpu() -> None:
    weight = make_weight("gauss", 128)
    one, other = (quantize_tensor.oracle(weight, 2.0**-8, "exact") for _ in range(2))
    other.packed[0, 0] ^= 1
    assert differing(one, other) == ["packed"]

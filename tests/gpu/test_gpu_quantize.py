"""``hy3 quantize`` on a GPU writes the bytes that it writes on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hy3.kernels.scale_search_device import CPU, choose_device, quantize_bits_on
from hy3.nvfp4.scales import RULES, tensor_scale
from hy3.quantize.pipeline import quantize
from support.distributions import make_column_weights, make_weight
from support.quantizing import no_progress, plan_of, tree
from support.tiny import TINY

pytest.importorskip("triton", reason="Triton is not installed")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)


@pytest.mark.parametrize("rule", RULES)
def test_equal_folders_from_gpu_and_cpu(tmp_path: Path, rule: str) -> None:
    gpu = choose_device("auto")
    assert gpu.name == "cuda"
    for device, name in ((CPU, "cpu"), (gpu, "gpu")):
        quantize(plan_of(TINY, rule), tmp_path / name, 2, no_progress, device=device)
    assert tree(tmp_path / "gpu") == tree(tmp_path / "cpu")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("weighted", [False, True])
def test_equal_arrays_from_gpu_and_cpu(rule: str, weighted: bool) -> None:
    weight = make_weight("real-like", 4096)
    bits = weight.view(torch.int16).numpy().view(np.uint16)
    column_weights = make_column_weights("spread", bits.shape[1]).numpy() if weighted else None
    t = tensor_scale(float(weight.abs().max()))
    arguments = (bits, t, rule, column_weights)
    ours, theirs = (quantize_bits_on(d, *arguments) for d in (choose_device("cuda"), CPU))
    for name, value in vars(ours).items():
        assert value.tobytes() == getattr(theirs, name).tobytes(), name

"""Where ``--device`` sends the scale search."""

from __future__ import annotations

from importlib.machinery import ModuleSpec

import numpy as np
import pytest
import torch

from hy3.errors import EnvironmentFault, InputError
from hy3.kernels import scale_search_device
from hy3.kernels.scale_search import quantize_bits
from hy3.kernels.scale_search_device import CPU, choose_device, quantize_bits_on


def machine(monkeypatch: pytest.MonkeyPatch, gpu: bool, triton: bool) -> None:
    found = ModuleSpec("triton", None) if triton else None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(scale_search_device, "find_spec", lambda name: found)


def test_auto_takes_a_gpu_where_triton_can_use_it(monkeypatch):
    machine(monkeypatch, gpu=True, triton=True)
    assert vars(choose_device("auto")) == {"name": "cuda", "reason": "a GPU"}
    assert choose_device("cuda").name == "cuda"
    assert choose_device("cpu") == CPU


@pytest.mark.parametrize(
    "gpu, triton, lack",
    [(False, True, "no CUDA device"), (True, False, "Triton"), (False, False, "no CUDA device")],
)
def test_without_a_gpu_auto_is_the_cpu_and_cuda_a_fault(monkeypatch, gpu, triton, lack):
    machine(monkeypatch, gpu, triton)
    device = choose_device("auto")
    assert device.name == "cpu" and lack in device.reason
    with pytest.raises(EnvironmentFault, match=lack) as fault:
        choose_device("cuda")
    assert "--device cpu" in fault.value.hint


def test_an_unknown_device_is_refused():
    with pytest.raises(InputError, match="'gpu' is unknown"):
        choose_device("gpu")


def test_the_cpu_runs_the_search_of_arrays():
    bits = np.arange(0x3F00, 0x3F00 + 64, dtype=np.uint16).reshape(2, 32)
    weights = np.linspace(0, 1, 32, dtype=np.float32)
    for column_weights in (None, weights):
        ours = quantize_bits_on(CPU, bits, 1.0, "exact", column_weights)
        theirs = quantize_bits(bits, 1.0, "exact", column_weights)
        for name, value in vars(ours).items():
            np.testing.assert_array_equal(value, getattr(theirs, name))

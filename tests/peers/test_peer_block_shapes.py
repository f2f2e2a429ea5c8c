"""Which splits of FP8 in blocks vLLM's own check refuses, beside the planner's rule."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hy3.hardware.device import parse_hardware
from hy3.plan.model_shape import ModelShape
from hy3.plan.settings import Settings
from hy3.plan.sharding import broken_rules
from support.real_models import HY3, HY_MT2
from support.shapes import shape_in

fp8_utils = pytest.importorskip(
    "vllm.model_executor.layers.quantization.utils.fp8_utils",
    reason="vLLM is not installed: make test-peers",
)


def refused(shape: ModelShape, size: int) -> bool:
    """By vLLM, of any linear that it builds of the model's classes in blocks; experts apart."""
    head, keys = shape.head_dim, max(1, shape.kv_heads // size)
    heads = shape.heads // size
    linears = [
        (shape.hidden_size, shape.hidden_size, [heads * head, keys * head, keys * head]),
        (shape.heads * head, heads * head, [shape.hidden_size]),
    ]
    for width in (shape.shared_size, shape.dense_size):
        linears.append((shape.hidden_size, shape.hidden_size, [width // size] * 2))
        linears.append((width, width // size, [shape.hidden_size]))
    for inputs, of_rank, outputs in linears:
        whole = sum(outputs) * (size if inputs == of_rank else 1)
        layer = SimpleNamespace(tp_size=size)
        try:
            fp8_utils.validate_fp8_block_shape(layer, inputs, whole, of_rank, outputs, [128, 128])
        except ValueError:
            return True
    return False


@pytest.mark.parametrize("raw", [HY3, HY_MT2], ids=["Hy3", "Hy-MT2-30B"])
def test_linears_that_vllm_refuses_to_cut(
    raw: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = shape_in("fp8", raw, "fp8")
    linears = replace(shape, classes=tuple(c for c in shape.classes if c.name != "routed_expert"))
    answers = set()
    for size in (1, 2, 4, 8, 16):
        monkeypatch.setattr(
            "vllm.distributed.get_tensor_model_parallel_world_size", lambda size=size: size
        )
        settings = Settings("vllm", tensor_parallel=size, expert_parallel=True)
        broken = broken_rules(linears, parse_hardware("2x8xh200"), settings)
        ours = "fp8_blocks" in [rule.identity for rule in broken]
        assert ours == refused(shape, size), size
        answers.add(ours)
    assert answers == {True, False}

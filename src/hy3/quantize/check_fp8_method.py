"""What ``quant_method: fp8`` needs of the tensors: scales of activations, and whole blocks.

Sources: vLLM 0.33 (``Fp8LinearMethod``, ``Fp8MoEMethod``, the loader of hy_v3) and SGLang's like.
"""

from __future__ import annotations

from collections.abc import Iterator

from hy3.checkpoint.census import Census
from hy3.checkpoint.forms import BLOCK_SIZE, FP8_BLOCK_INV, FP8_FORMS
from hy3.checkpoint.index import Checkpoint
from hy3.checkpoint.names import module_of, tensor_class
from hy3.checkpoint.quantization_config import QuantizationConfig
from hy3.quantize.verdict import Check, judge

_FUSED_FIRST = ("q_proj", "k_proj", "gate_proj")  # of fused parts only the last may end in a block


def check_fp8_method(parsed: QuantizationConfig, checkpoint: Checkpoint, census: Census) -> Check:
    """The check ``scheme`` for this method."""
    faults = [*_input_scale_faults(parsed, checkpoint, census), *_block_faults(checkpoint, census)]
    if faults:
        return judge("scheme", faults, "the engines cannot load what the config promises", "")
    long = [
        name
        for name in checkpoint.tensors
        if tensor_class(name) == "kv_scale" and checkpoint.info(name).nbytes > 4
    ]
    if long:
        detail = "scales of the KV cache are stored per head, and vLLM loads one per layer"
        return Check("scheme", "warn", detail, tuple(long))
    return Check("scheme", "pass", "the scales that the config's formats need are stored")


def _input_scale_faults(
    parsed: QuantizationConfig, checkpoint: Checkpoint, census: Census
) -> Iterator[str]:
    """Static activations without their scale run under garbage; others have no place for one."""
    for name, form in census.forms.items():
        scale = f"{module_of(name)}.input_scale"
        stored = scale in checkpoint.tensors
        if form in FP8_FORMS and stored != parsed.static_activations:
            yield f"{scale} is " + ("stored under dynamic activations" if stored else "missing")


def _block_faults(checkpoint: Checkpoint, census: Census) -> Iterator[str]:
    for name, form in census.forms.items():
        last = module_of(name).rpartition(".")[2]
        if form != FP8_BLOCK_INV or name not in checkpoint.tensors or last not in _FUSED_FIRST:
            continue
        rows = checkpoint.info(name).shape[0]
        if rows % BLOCK_SIZE:
            yield f"{name} ends within a block: {rows} rows, and the engines fuse it"

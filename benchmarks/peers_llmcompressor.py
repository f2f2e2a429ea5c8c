"""Runs llm-compressor on a checkpoint; peers_quantize.py starts it with that tool's own Python.

    python peers_llmcompressor.py SOURCE OUT PRESET cpu|cuda REPORT

PRESET is ``oneshot`` or the weight observer of ``model_free_ptq`` (``default`` leaves it unset).
Only the routed experts are quantized, weights alone (NVFP4A16).
"""

from __future__ import annotations

import os
import sys

from peers_stages import Stages

OTHERS = r"re:^(?!.*\.mlp\.experts\.)"  # every module that is no routed expert
LARGEST_WORKERS = 4


def model_free(source: str, out: str, observer: str, device: str, stages: Stages) -> None:
    """Shard by shard, without a model class."""
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
    from llmcompressor import model_free_ptq

    scheme = preset_name_to_scheme("NVFP4A16", ["Linear"])
    if observer != "default":
        scheme.weights.observer = observer
    stages.done("import")
    workers = min(LARGEST_WORKERS, os.cpu_count() or 1)
    model_free_ptq(source, out, scheme=scheme, ignore=[OTHERS], max_workers=workers, device=device)
    stages.done("quantize and save")


def with_model(source: str, out: str, stages: Stages) -> None:
    """The model loaded by transformers, quantized without data, saved.

    llm-compressor itself moves modules to the accelerator that it finds.
    """
    import torch
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from transformers import AutoModelForCausalLM

    stages.done("import")
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    stages.done("load")
    recipe = QuantizationModifier(targets="Linear", scheme="NVFP4A16", ignore=["lm_head", OTHERS])
    oneshot(model=model, recipe=recipe)
    stages.done("quantize")
    model.save_pretrained(out)
    stages.done("save")


def main() -> None:
    """Quantize and report the stages."""
    source, out, preset, device, report = sys.argv[1:]
    stages = Stages(["llmcompressor", "compressed-tensors", "transformers", "torch"])
    if preset == "oneshot":
        with_model(source, out, stages)
    else:
        model_free(source, out, preset, device, stages)
    stages.write(report)


if __name__ == "__main__":
    main()

"""Runs NVIDIA ModelOpt on a checkpoint; peers_quantize.py starts it with that tool's own Python.

    python peers_modelopt.py SOURCE OUT max|mse|sweep|four-over-six cpu|cuda REPORT

Only the routed experts are quantized, weights alone, under each algorithm's own defaults.
"""

from __future__ import annotations

import sys
from typing import Any

from peers_stages import Stages

ALGORITHMS: dict[str, Any] = {
    "max": "max",
    "mse": {"method": "mse"},
    "sweep": {"method": "mse", "fp8_scale_sweep": True},
    "four-over-six": {
        "method": "mse",
        "fp8_scale_sweep": False,
        "start_multiplier": 1.0,
        "stop_multiplier": 1.5,
        "step_size": 0.5,
    },
}
CALIBRATION_TOKENS = 32


def settings(preset: str) -> dict[str, Any]:
    """The quantization config: experts' weights in NVFP4, nothing else."""
    blocks: dict[Any, Any] = {-1: 16, "type": "static", "scale_bits": (4, 3)}
    if preset == "max":
        blocks["type"] = "dynamic"
    if preset == "four-over-six":
        blocks["four_over_six"] = True
    experts = {
        "quantizer_name": "*.experts.*weight_quantizer",
        "cfg": {"num_bits": (2, 1), "block_sizes": blocks},
        "enable": True,
    }
    return {
        "quant_cfg": [{"quantizer_name": "*", "enable": False}, experts],
        "algorithm": ALGORITHMS[preset],
    }


def main() -> None:
    """Load, quantize, export, and report the stages."""
    source, out, preset, device, report = sys.argv[1:]
    stages = Stages(["nvidia-modelopt", "transformers", "torch"])
    import modelopt.torch.quantization as mtq
    import torch
    from modelopt.torch.export import export_hf_checkpoint
    from transformers import AutoModelForCausalLM

    stages.done("import")
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).to(device)
    stages.done("load")
    tokens = torch.arange(CALIBRATION_TOKENS, device=device)[None]

    def forward(module: torch.nn.Module) -> None:
        with torch.no_grad():
            module(tokens)

    model = mtq.quantize(model, settings(preset), forward)
    stages.done("quantize")
    with torch.inference_mode():
        export_hf_checkpoint(model, export_dir=out)
    stages.done("save")
    stages.write(report)


if __name__ == "__main__":
    main()

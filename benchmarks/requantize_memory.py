"""Anonymous memory and rate of ``hy3 requantize`` on FP8 in tencent/Hy3-FP8's layout.

    python benchmarks/requantize_memory.py

The checkpoint is that of quantize_memory.py, each projection in FP8 under one scale, in one
shard, which one thread works on.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from hy3.checkpoint.forms import FP8_TENSOR, parts_of
from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.model_config import parse_config
from hy3.checkpoint.names import expected_tensors
from hy3.checkpoint.writer import ShardWriter
from quantize_memory import CONFIG, run_sampled
from record import record

QUANTIZATION = {"quant_method": "fp8", "activation_scheme": "static"}


def write_checkpoint(folder: Path) -> int:
    """One shard; returns its bytes."""
    folder.mkdir()
    chance = np.random.default_rng(0)
    tensors: list[TensorSpec] = []
    for spec in expected_tensors(parse_config(CONFIG)).values():
        quantized = spec.name.endswith("_proj.weight") and "eh_proj" not in spec.name
        parts = [part.spec for part in parts_of(spec, FP8_TENSOR)] if quantized else [spec]
        tensors += [TensorSpec(each.name, each.dtype, each.shape or (1,)) for each in parts]
    tensors.sort(key=lambda spec: spec.dtype != "F32")  # elements stay aligned
    path = folder / "model.safetensors"
    with ShardWriter(path, tensors) as writer:
        for spec in tensors:
            if spec.dtype == "F8_E4M3":  # no code is 0x7F or 0xFF, NaN
                signs = chance.integers(0, 2, spec.nbytes, np.uint8) << 7
                writer.write(spec.name, chance.integers(0, 0x7F, spec.nbytes, np.uint8) | signs)
            elif spec.dtype == "F32":
                writer.write(spec.name, np.full(spec.nbytes // 4, 0.001, np.float32))
            else:
                writer.write(spec.name, np.full(spec.nbytes // 2, 0x3C00, np.uint16))
        writer.finish()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": QUANTIZATION}))
    return path.stat().st_size


def main() -> None:
    """Generate, requantize, and leave benchmarks/results/requantize_memory.json."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "source", Path(folder) / "out"
        size = write_checkpoint(source)
        command = [sys.executable, "-m", "hy3", "requantize", str(source), str(out)]
        measured = run_sampled([*command, "--workers", "1"])
    results = {
        "workers": 1,
        "source_bytes": size,
        "limit_bytes": 10**9,
        **measured,
        "source_bytes_per_cpu_s": round(size / measured["cpu_s"]),
    }
    print(record("requantize_memory", {"results": results}))


if __name__ == "__main__":
    main()

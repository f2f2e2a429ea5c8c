"""Anonymous memory and rate of ``hy3 quantize`` on a generated checkpoint with a shard over 1 GB.

    python benchmarks/quantize_memory.py [--workers N]

Weights have Hy3's own expert shapes. RssAnon of the process is sampled every few milliseconds, so
a shorter peak may be missed; the kernel's VmHWM, which counts file pages as well, is given beside.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.model_config import parse_config
from hy3.checkpoint.names import expected_tensors, is_routed_expert
from hy3.checkpoint.writer import ShardWriter
from record import record

CONFIG: dict[str, Any] = {
    "model_type": "hy_v3",
    "vocab_size": 65536,
    "hidden_size": 4096,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_nextn_predict_layers": 0,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "qk_norm": True,
    "route_norm": True,
    "tie_word_embeddings": False,
    "first_k_dense_replace": 1,
    "num_experts": 24,
    "num_experts_per_tok": 4,
    "num_shared_experts": 1,
    "expert_hidden_dim": 1536,
    "router_scaling_factor": 2.826,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 11158840.0, "rope_type": "default"},
    "max_position_embeddings": 4096,
    "eos_token_id": 1,
}
SAMPLE_SECONDS = 0.004


def write_checkpoint(folder: Path) -> list[int]:
    """Two shards: one of embeddings, head and some experts, one of the other experts."""
    folder.mkdir()
    specs = list(expected_tensors(parse_config(CONFIG)).values())
    late = {
        spec.name for spec in specs if is_routed_expert(spec.name) and ".experts.1" in spec.name
    }
    shards = {
        "model-00001-of-00002.safetensors": [spec for spec in specs if spec.name not in late],
        "model-00002-of-00002.safetensors": [spec for spec in specs if spec.name in late],
    }
    noise = np.random.default_rng(0).standard_normal(2**22, np.float32) * np.float32(0.02)
    bits = (noise.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    for name, tensors in shards.items():
        with ShardWriter(folder / name, tensors) as writer:
            for spec in tensors:
                for chunk in _fill(spec, bits):
                    writer.write_chunk(chunk)
            writer.finish()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    places = {spec.name: name for name, tensors in shards.items() for spec in tensors}
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return [(folder / name).stat().st_size for name in shards]


def _fill(spec: TensorSpec, bits: np.ndarray) -> Iterator[np.ndarray]:
    source = bits if spec.dtype == "BF16" else np.zeros_like(bits)
    for start in range(0, spec.nbytes, source.size):
        yield source[: min(source.size, spec.nbytes - start)]


def run_sampled(command: list[str]) -> dict[str, Any]:
    """Run a command; peaks of its memory in bytes, and its times."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    anonymous = high_water = 0
    while process.poll() is None:
        status = _status(process.pid)
        anonymous = max(anonymous, status.get("RssAnon", 0))
        high_water = max(high_water, status.get("VmHWM", 0))
        time.sleep(SAMPLE_SECONDS)
    if process.returncode:
        sys.exit(f"{' '.join(command)} exited with {process.returncode}")
    usage = os.times()
    return {
        "peak_rss_anon_bytes": anonymous,
        "peak_rss_bytes": high_water,
        "wall_s": round(time.monotonic() - start, 2),
        "cpu_s": round(usage.children_user + usage.children_system, 2),
    }


def _status(pid: int) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines if line.startswith(("RssAnon:", "VmHWM:")))
    return {key.rstrip(":"): int(count) * 1024 for key, count, _ in pairs}


def main() -> None:
    """Generate, quantize, and leave benchmarks/results/quantize_memory.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", default="2")
    workers = parser.parse_args().workers
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "source", Path(folder) / "out"
        sizes = write_checkpoint(source)
        command = [sys.executable, "-m", "hy3", "quantize", str(source), str(out)]
        measured = run_sampled([*command, "--workers", workers])
    experts = sum(
        spec.nbytes
        for spec in expected_tensors(parse_config(CONFIG)).values()
        if is_routed_expert(spec.name)
    )
    results = {
        "workers": int(workers),
        "shard_bytes": sizes,
        "expert_bytes": experts,
        "limit_bytes": 10**9,
        **measured,
        "bytes_per_cpu_s": round(sum(sizes) / measured["cpu_s"]),
    }
    print(record("quantize_memory", {"results": results}))


if __name__ == "__main__":
    main()

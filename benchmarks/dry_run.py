"""What ``quantize --dry-run`` predicts beside what the run takes, on a generated source of 2.9 GB.

    python benchmarks/dry_run.py [--workers N] [--rounds N]

Experts have Hy3's own shape; eight shards of about equal size. Before each run the source is
evicted from the page cache, which is the state that the prediction is for; the output is on disk
when the run ends. Prediction and run follow each other; ratios of processor time are given as well,
because other work on the machine moves them less than those of time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.model_config import parse_config
from hy3.checkpoint.names import expected_tensors
from hy3.checkpoint.writer import ShardWriter
from hy3.hardware.cores import usable_cores
from hy3.quantize.pipeline import quantize, worker_limit
from hy3.quantize.plan import plan_source
from hy3.quantize.prediction import predict
from hy3.quantize.progress import Meter
from hy3.quantize.recipe import load_recipe
from hy3.quantize.source import local_source
from quantize_memory import CONFIG
from record import record

SHARDS = 8


def write_source(folder: Path) -> int:
    """Weights of a normal distribution, the largest tensors spread first; returns their bytes."""
    folder.mkdir()
    config = CONFIG | {"num_experts": 48}
    specs = sorted(expected_tensors(parse_config(config)).values(), key=lambda spec: -spec.nbytes)
    shards: list[list[TensorSpec]] = [[] for _ in range(SHARDS)]
    for spec in specs:
        min(shards, key=lambda shard: sum(each.nbytes for each in shard)).append(spec)
    noise = np.random.default_rng(0).standard_normal(2**22, np.float32) * np.float32(0.02)
    bits = (noise.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    places = {}
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{SHARDS:05d}.safetensors"
        with ShardWriter(folder / name, shard) as writer:
            for spec in shard:
                source = bits if spec.dtype == "BF16" else np.zeros_like(bits)
                for start in range(0, spec.nbytes, source.size):
                    writer.write_chunk(source[: spec.nbytes - start])
            writer.finish()
        places |= dict.fromkeys((spec.name for spec in shard), name)
    (folder / "config.json").write_text(json.dumps(config))
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return sum(spec.nbytes for spec in specs)


def evict(folder: Path) -> None:
    """Let the page cache forget the folder's files."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@contextmanager
def unseen(label: str, total_bytes: int) -> Iterator[Meter]:
    """No progress display."""
    yield lambda *_: None


def one_round(source: Path, out: Path, workers: int) -> dict[str, Any]:
    """Predict, then run."""
    plan = plan_source(local_source(source), load_recipe("experts-nvfp4"), "exact", "same")
    start = time.monotonic()
    prediction = predict(plan, out, worker_limit(plan, workers))
    measuring_s = time.monotonic() - start
    evict(source)
    start, cpu_start = time.monotonic(), time.process_time()
    quantize(plan, out, workers, unseen)
    wall_s, cpu_s = time.monotonic() - start, time.process_time() - cpu_start
    shutil.rmtree(out)
    return {
        "measuring_s": round(measuring_s, 2),
        "prediction": prediction.as_json(),
        "wall_s": round(wall_s, 2),
        "cpu_s": round(cpu_s, 2),
        "measured_over_predicted": round(wall_s / prediction.overlapped_seconds, 3),
        "measured_over_predicted_cpu": round(cpu_s / prediction.cpu_seconds, 3),
        "within_interval": prediction.overlapped_seconds <= wall_s <= prediction.serial_seconds,
    }


def main() -> None:
    """Leave benchmarks/results/dry_run.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    load_before = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        nbytes = write_source(source)
        # One round more: the first loads the kernel and is not counted.
        rounds = [
            one_round(source, Path(folder) / "out", options.workers)
            for _ in range(options.rounds + 1)
        ][1:]
    results = {
        "source_bytes": nbytes,
        "workers": options.workers,
        "load_average": {"before": load_before, "after": round(os.getloadavg()[0], 2)},
        **{
            f"median_{key}": statistics.median(each[key] for each in rounds)
            for key in ("measured_over_predicted", "measured_over_predicted_cpu")
        },
        "rounds": rounds,
    }
    print(record("dry_run", {"results": results}))


if __name__ == "__main__":
    main()

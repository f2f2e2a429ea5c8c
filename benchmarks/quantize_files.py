"""Rate of ``hy3 quantize`` from file to file: with the source in memory, and bound by the disk.

    python benchmarks/quantize_files.py warm [--repeats N]
    python benchmarks/quantize_files.py disk [--experts N] [--scatter]

``warm`` quantizes 2.6 GB that lie in the page cache. ``disk`` quantizes a source that does not, and
beside it, before and after, copies as much: reads all of it and writes and flushes as many bytes as
the quantizer does. Both leave their part of benchmarks/results/quantize_files.json. Weights have
Hy3's expert shapes and share; dirty pages and cache are the whole machine's, less what they were.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.model_config import parse_config
from hy3.checkpoint.names import expected_tensors
from hy3.checkpoint.writer import ShardWriter
from hy3.quantize.pipeline import quantize
from quantize_memory import CONFIG
from record import ROOT, provenance, record

sys.path.insert(0, str(ROOT / "tests"))
from support.quantizing import no_progress, plan_of

SHARD_BYTES = 3 * 10**9
BLOCK_BYTES = 8 * 2**20
RESULT = ROOT / "benchmarks" / "results" / "quantize_files.json"


def write_source(folder: Path, layers: int, experts: int, scatter: bool) -> None:
    """A checkpoint of bell-shaped weights, no two blocks of which are equal.

    ``scatter`` puts gate and up of each expert into different shards.
    """
    folder.mkdir()
    raw = CONFIG | {"num_hidden_layers": layers, "num_experts": experts, "vocab_size": 8192}
    specs = list(expected_tensors(parse_config(raw)).values())
    count = max(4, -(-sum(spec.nbytes for spec in specs) // SHARD_BYTES))
    names = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    shards: dict[str, list[TensorSpec]] = {name: [] for name in names}
    share = -(-len(specs) // count)
    for i, spec in enumerate(specs):
        shards[names[i % count if scatter else i // share]].append(spec)
    noise = np.random.default_rng(0).standard_normal(2**23 + 2**21, np.float32) * np.float32(0.02)
    pool = (noise.view(np.uint32) >> 16).astype(np.uint16)
    start = 0
    for name, tensors in shards.items():
        tensors.sort(key=lambda spec: spec.dtype != "F32")  # elements stay aligned
        with ShardWriter(folder / name, tensors) as writer:
            for spec in tensors:
                for done in range(0, spec.nbytes, BLOCK_BYTES):
                    start = (start + 1_000_003) % 2**23  # an odd step: no block comes twice
                    size = min(BLOCK_BYTES, spec.nbytes - done)
                    piece = np.roll(pool[start : start + 2**21], start)
                    block = np.resize(piece, BLOCK_BYTES // 2)[: -(-size // 2)]
                    writer.write_chunk(block if spec.dtype == "BF16" else np.zeros(size, np.uint8))
            writer.finish()
    (folder / "config.json").write_text(json.dumps(raw))
    places = {spec.name: name for name, tensors in shards.items() for spec in tensors}
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def pass_through(folder: Path, drop: bool) -> None:
    """Bring a source into the page cache, or put it out of it."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            while not drop and file.read(BLOCK_BYTES):
                pass
            if drop:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def copy(source: Path, out: Path, output_bytes: int) -> None:
    """Read all of the source, write so many of its bytes evenly meanwhile, flush them."""
    paths = sorted(source.glob("*.safetensors"))
    total = sum(path.stat().st_size for path in paths)
    read = written = 0
    with out.open("wb", buffering=0) as target:
        for path in paths:
            with path.open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
                while block := file.read(BLOCK_BYTES):
                    read += len(block)
                    wanted = output_bytes * read // total - written
                    written += target.write(block[:wanted])
        os.fsync(target.fileno())
    out.unlink()


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Wall and processor seconds of this process, and its peak of anonymous memory."""
    with sampled() as peaks:
        wall, cpu = time.monotonic(), time.process_time()
        work()
        times = {"wall_s": time.monotonic() - wall, "cpu_s": time.process_time() - cpu}
    return {key: round(each, 2) for key, each in times.items()} | peaks


@contextmanager
def sampled() -> Generator[dict[str, int], None, None]:
    """Peaks over the time of the context."""
    before, peaks, done = memory(), {}, threading.Event()

    def sample() -> None:
        while not done.wait(0.02):
            for key, value in memory().items():
                grown = value if key == "rss_anon" else value - before[key]
                peaks[f"peak_{key}_bytes"] = max(peaks.get(f"peak_{key}_bytes", 0), grown)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield peaks
    finally:
        done.set()
        sampler.join()


def memory() -> dict[str, int]:
    """Bytes: this process's anonymous memory, the machine's dirty pages and page cache."""
    kib: dict[str, int] = {}
    for file in ("/proc/self/status", "/proc/meminfo"):
        for line in Path(file).read_text().splitlines():
            if line.startswith(("RssAnon:", "Dirty:", "Writeback:", "Cached:")):
                kib[line.partition(":")[0]] = int(line.split()[1])
    return {
        "rss_anon": kib["RssAnon"] * 1024,
        "dirty": (kib["Dirty"] + kib["Writeback"]) * 1024,
        "cache": kib["Cached"] * 1024,
    }


def warm(folder: Path, repeats: int) -> dict[str, Any]:
    """One worker and two; a rate per core is over processor time, which others disturb less."""
    source, out = folder / "source", folder / "out"
    write_source(source, layers=2, experts=64, scatter=False)
    plan = plan_of(source)
    results: dict[str, Any] = {"source_bytes": plan.source_bytes, "repeats": repeats}
    for workers in (1, 2):
        runs = []
        for _ in range(repeats + 1):  # the first one warms up
            shutil.rmtree(out, ignore_errors=True)
            pass_through(source, drop=False)
            runs.append(timed(lambda workers=workers: quantize(plan, out, workers, no_progress)))
        rates = {
            f"bytes_per_{key}": [round(plan.source_bytes / run[key]) for run in runs[1:]]
            for key in ("cpu_s", "wall_s")
        }
        results[f"{workers}_workers"] = {
            key: {"best": max(each), "median": round(statistics.median(each))}
            for key, each in rates.items()
        } | {"peak_rss_anon_bytes": max(run["peak_rss_anon_bytes"] for run in runs)}
    return results


def disk(folder: Path, experts: int, scatter: bool) -> dict[str, Any]:
    """Copy, quantize with two workers, copy again, each from a cold cache."""
    source, out = folder / "source", folder / "out"
    write_source(source, layers=4, experts=experts, scatter=scatter)
    plan = plan_of(source)
    runs = {}
    for name, work in (
        ("copy_before", lambda: copy(source, out, plan.output_bytes)),
        ("quantize", lambda: quantize(plan, out, 2, no_progress)),
        ("copy_after", lambda: copy(source, folder / "copy", plan.output_bytes)),
    ):
        pass_through(source, drop=True)
        runs[name] = timed(work)
        print(name, runs[name], file=sys.stderr)
    copies = [runs[name]["wall_s"] for name in ("copy_before", "copy_after")]
    wall = runs["quantize"]["wall_s"]
    return {
        "source_bytes": plan.source_bytes,
        "output_bytes": plan.output_bytes,
        "gate_and_up_in_different_shards": scatter,
        "workers": 2,
        **runs,
        "speed_relative_to_mean_copy": round(
            statistics.mean(copies) / runs["quantize"]["wall_s"], 3
        ),
        "speed_relative_to_best_copy": round(min(copies) / wall, 3),
    }


def main() -> None:
    """Measure one part and leave it beside the other in the result file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("warm", "disk"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--experts", type=int, default=192)
    parser.add_argument("--scatter", action="store_true")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        if options.part == "warm":
            key, result = "warm", warm(Path(name), options.repeats)
        else:
            key = "disk_scattered" if options.scatter else "disk"
            result = disk(Path(name), options.experts, options.scatter)
    known = json.loads(RESULT.read_text())["results"] if RESULT.exists() else {}
    print(record("quantize_files", {"results": known | {key: provenance() | result}}))


if __name__ == "__main__":
    main()

"""Moves data between two ranks: all-reduces of 8 kB to 64 MB, timed and checked.

A script by itself: the engine's own Python runs it on each node, with NCCL where there are GPUs and
gloo where there are none, so that what is tested is what will serve. It imports nothing of hy3.

    python all_reduce.py RANK MASTER_ADDRESS PORT TIMEOUT_SECONDS [INTERFACE]

INTERFACE is the one that carries this rank's address; without it each library chooses for itself.

Rank 0 prints what NCCL says of its network, then one line of JSON: the backend, and for each size
the median time and whether the sums were right.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

SIZES_BYTES = (8 << 10, 64 << 10, 512 << 10, 4 << 20, 64 << 20)
_REPEATS = {8 << 10: 200, 64 << 10: 100, 512 << 10: 40, 4 << 20: 10, 64 << 20: 3}
_WARM_UPS = {8 << 10: 3, 64 << 10: 3, 512 << 10: 3, 4 << 20: 3, 64 << 20: 1}


def measure(size_bytes: int, rank: int, world: int, device: str) -> dict[str, Any]:
    """Time one size; every element must be the sum over ranks."""
    value = torch.empty(size_bytes // 4, dtype=torch.float32, device=device)
    times = []
    right = True
    for repeat in range(_WARM_UPS[size_bytes] + _REPEATS[size_bytes]):
        value.fill_(rank + 1 + repeat)
        _wait(device)
        start = time.perf_counter()
        dist.all_reduce(value)
        _wait(device)
        times.append(time.perf_counter() - start)
        wanted = sum(range(1, world + 1)) + world * repeat
        right = right and bool((value == wanted).all())
    median_s = statistics.median(times[_WARM_UPS[size_bytes] :])
    return {"bytes": size_bytes, "median_us": median_s * 1e6, "right": right}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    rank, address, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    seconds = float(sys.argv[4])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    backend = "nccl" if device == "cuda" else "gloo"
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if len(sys.argv) > 5:
            os.environ.setdefault(variable, sys.argv[5])
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET")
    dist.init_process_group(
        backend,
        init_method=f"tcp://{address}:{port}",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=seconds),
    )
    results = [measure(size, rank, 2, device) for size in SIZES_BYTES]
    if rank == 0:
        print(json.dumps({"backend": backend, "results": results}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Works each GPU for some seconds and reads the driver meanwhile: clocks, power, what limits them.

A script by itself: the engine's own Python runs it on a node; it imports nothing of hy3. Half of
the time goes to square multiplications, which fill the arithmetic units and draw the most power,
half to a matrix by a vector, which reads memory as decoding does.

    python gpu_load.py SECONDS

Prints one JSON object: for each device the driver's lines before, during and after, and the rates.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

# Also the order in which hy3 reads the fields.
FIELDS = (
    "name,compute_cap,driver_version,clocks.sm,clocks.max.sm,utilization.gpu,power.draw,"
    "clocks_throttle_reasons.active,power.limit"
)
_SQUARE = 8192
_THIN = 16384  # 512 MiB of BF16, far beyond any cache
_BLOCK_S = 0.25
_BETWEEN_READINGS_S = 0.5
_SETTLE_S = 2.0


def ask_driver(identity: str) -> str:
    """One line of nvidia-smi."""
    command = ["nvidia-smi", "-i", identity, "--format=csv,noheader,nounits"]
    command.append(f"--query-gpu={FIELDS}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.strip()


def repeat(work: Callable[[], Any], amount: float, seconds: float) -> list[float]:
    """Amount a second, for each block of about a quarter of a second."""
    work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    each = max(1, round(_BLOCK_S / max(time.perf_counter() - start, 1e-5)))
    rates = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(each):
            work()
        torch.cuda.synchronize()
        rates.append(amount * each / (time.perf_counter() - start))
    return rates


def lowest_tenth(rates: list[float]) -> float:
    """What nine blocks of ten reach: a device that flips into a slow state shows it here."""
    return sorted(rates)[len(rates) // 10]


def work_one(index: int, seconds: float) -> dict[str, Any]:
    """Everything about one device."""
    torch.cuda.set_device(index)
    identity = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
    before = ask_driver(identity)
    square = torch.randn(_SQUARE, _SQUARE, device="cuda", dtype=torch.bfloat16)
    thin = torch.randn(_THIN, _THIN, device="cuda", dtype=torch.bfloat16)
    vector = torch.randn(_THIN, device="cuda", dtype=torch.bfloat16)
    during: list[str] = []
    stop = threading.Event()

    def watch() -> None:
        # The first reading comes when clocks have had time to rise.
        while not stop.wait(_BETWEEN_READINGS_S):
            during.append(ask_driver(identity))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        flops = repeat(lambda: square @ square, 2.0 * _SQUARE**3, seconds / 2)
        reads = repeat(lambda: thin @ vector, 2.0 * _THIN**2, seconds / 2)
    finally:
        stop.set()
        watcher.join()
    time.sleep(_SETTLE_S)
    return {
        "before": before,
        "during": during,
        "after": ask_driver(identity),
        "flops": lowest_tenth(flops),
        "read_bytes_s": lowest_tenth(reads),
    }


def main() -> None:
    seconds = float(sys.argv[1])
    devices = [work_one(index, seconds) for index in range(torch.cuda.device_count())]
    print(json.dumps({"devices": devices}), flush=True)


if __name__ == "__main__":
    main()

"""GB/s of BF16 per core of the scale search, kernel only, on one thread.

    python benchmarks/scale_search.py

Rates are per second of processor time, so a busy machine disturbs them little; the best of the
repetitions is the kernel's, the median is given beside it.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hy3.kernels.scale_search import largest_magnitude, quantize_bits
from hy3.nvfp4.scales import RULES, tensor_scale
from record import record

SHAPE = (4096, 4096)
REPETITIONS = 15


def gaussian_bits() -> NDArray[np.uint16]:
    """BF16 patterns of a seeded normal distribution, truncated from fp32."""
    values = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def measure(bits: NDArray[np.uint16], t: float, rule: str) -> dict[str, Any]:
    """Rates of one rule after a warming call."""
    run = quantize_bits.named("numba")
    run(bits[:64], t, rule)
    rates = []
    for _ in range(REPETITIONS):
        start = time.thread_time()
        run(bits, t, rule)
        rates.append(bits.nbytes / (time.thread_time() - start) / 1e9)
    return {
        "best_gb_per_cpu_s": round(max(rates), 3),
        "median_gb_per_cpu_s": round(statistics.median(rates), 3),
    }


def main() -> None:
    """Measure every rule and leave benchmarks/results/scale_search.json."""
    bits = gaussian_bits()
    t = tensor_scale(largest_magnitude(bits))
    rules = {rule: measure(bits, t, rule) for rule in RULES}
    results = {"shape": list(SHAPE), "distribution": "gauss", "threads": 1, "rules": rules}
    print(record("scale_search", {"results": results}))


if __name__ == "__main__":
    main()

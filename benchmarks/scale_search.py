"""GB/s of BF16 per core of the scale search, kernel only, on one thread.

    python benchmarks/scale_search.py

Rates are per second of processor time, so a busy machine disturbs them little; the best of the
repetitions is the kernel's, the median is given beside it. Everything that quantizing a matrix in
memory takes is included: the search, packing, errors and the histogram of scales.
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
NORMAL, HEAVY_TAILED = "gauss", "t(2)"


def make_bits(distribution: str) -> NDArray[np.uint16]:
    """BF16 patterns of a seeded distribution, truncated from fp32."""
    generator = np.random.default_rng(0)
    if distribution == NORMAL:
        values = generator.standard_normal(SHAPE, np.float32)
    else:
        values = generator.standard_t(2, SHAPE).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def measure(
    bits: NDArray[np.uint16], t: float, rule: str, column_weights: NDArray[np.float32] | None
) -> dict[str, Any]:
    """Rates of one rule after a warming call."""
    run = quantize_bits.named("numba")
    run(bits[:64], t, rule, column_weights)
    rates = []
    for _ in range(REPETITIONS):
        start = time.thread_time()
        run(bits, t, rule, column_weights)
        rates.append(bits.nbytes / (time.thread_time() - start) / 1e9)
    return {
        "best_gb_per_cpu_s": round(max(rates), 3),
        "median_gb_per_cpu_s": round(statistics.median(rates), 3),
    }


def measure_rules(distribution: str) -> dict[str, Any]:
    """Each rule on one distribution, without and with column weights u^4."""
    bits = make_bits(distribution)
    t = tensor_scale(largest_magnitude(bits))
    column_weights = np.random.default_rng(1).random(SHAPE[1], np.float32) ** 4
    return {rule: measure(bits, t, rule, None) for rule in RULES} | {
        f"{rule}, weighted": measure(bits, t, rule, column_weights) for rule in RULES
    }


def main() -> None:
    """Measure every rule and leave benchmarks/results/scale_search.json."""
    results = {
        "shape": list(SHAPE),
        "distribution": NORMAL,
        "threads": 1,
        "rules": measure_rules(NORMAL),
        "heavy_tailed": {"distribution": HEAVY_TAILED, "rules": measure_rules(HEAVY_TAILED)},
    }
    print(record("scale_search", {"results": results}))


if __name__ == "__main__":
    main()

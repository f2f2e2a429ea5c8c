"""GB/s of BF16 per core of the FP8 encoder and decoder, kernel only, beside torch's own casts.

    python benchmarks/fp8_rates.py

Rates are per second of processor time of one thread; the best of the repetitions is the kernel's,
the median is given beside it. ``torch`` does the same with its own operations in the same run:
largest magnitudes, division and cast to encode, cast and product to decode; its encoder's codes are
compared with ours, since only equal work makes a ratio. ``errors`` is what quantizing adds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hy3.checkpoint.forms import FP8, FP8_BLOCK, tile_of
from hy3.kernels.fp8_decode import decode_fp8, fp8_errors
from hy3.kernels.fp8_encode import encode_fp8
from record import record

SHAPE = (4096, 4096)
REPETITIONS = 15


def rate_of(work: Callable[[], object], nbytes: int) -> dict[str, float]:
    """Of the BF16 bytes, after a warming call."""
    work()
    rates = []
    for _ in range(REPETITIONS):
        start = time.thread_time()
        work()
        rates.append(nbytes / (time.thread_time() - start) / 1e9)
    return {
        "best_gb_per_cpu_s": round(max(rates), 3),
        "median_gb_per_cpu_s": round(statistics.median(rates), 3),
    }


def tiled(matrix: torch.Tensor, tile: tuple[int, int]) -> torch.Tensor:
    """[tiles down, rows, tiles across, columns] of a matrix of whole tiles."""
    return matrix.unflatten(0, (-1, tile[0])).unflatten(2, (-1, tile[1]))


def torch_encode(weight: torch.Tensor, tile: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales by torch's own operations, in fp32."""
    tiles = tiled(weight.float(), tile)
    scales = tiles.abs().amax((1, 3), keepdim=True) / 448
    return (tiles / scales).to(torch.float8_e4m3fn), scales


def measure(bits: np.ndarray, tile: tuple[int, int]) -> dict[str, Any]:
    """Both directions, ours and torch's, and their ratios."""
    encode, decode = encode_fp8.named("numba"), decode_fp8.named("numba")
    weight = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    codes, scales = encode(bits, tile)
    their_codes, their_scales = torch_encode(weight, tile)
    ours = tiled(torch.from_numpy(codes), tile)
    assert torch.equal(ours, their_codes.view(torch.uint8)), "the encoders differ"
    found: dict[str, Any] = {
        "encode": rate_of(lambda: encode(bits, tile), bits.nbytes),
        "encode_torch": rate_of(lambda: torch_encode(weight, tile), bits.nbytes),
        "decode": rate_of(lambda: decode(codes, scales, tile), bits.nbytes),
        "decode_torch": rate_of(
            lambda: (their_codes.float() * their_scales).bfloat16(), bits.nbytes
        ),
        "errors": rate_of(lambda: fp8_errors(bits, codes, scales, tile), bits.nbytes),
    }
    for name in ("encode", "decode"):
        best, theirs = (found[each]["best_gb_per_cpu_s"] for each in (name, f"{name}_torch"))
        found[f"{name}_times_torch"] = round(best / theirs, 2)
    return found


def main() -> None:
    """Measure rows and blocks and leave benchmarks/results/fp8_rates.json."""
    torch.set_num_threads(1)
    values = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    results = {
        "shape": list(SHAPE),
        "threads": 1,
        "per_channel": measure(bits, tile_of(SHAPE, FP8)),
        "blocks_128x128": measure(bits, tile_of(SHAPE, FP8_BLOCK)),
    }
    print(record("fp8_rates", {"results": results}))


if __name__ == "__main__":
    main()

"""The Triton scale search on one GPU: equal bytes, no mismatch with a sweep, GB/s of BF16.

    python benchmarks/scale_search_gpu.py

Three independent checks, each with and without column weights: the bytes of the torch oracle on the
CPU; a kernel written here that tries all 119 codes with other arithmetic (true division,
comparisons) over 2^30 groups; and the squared errors of the packed bytes, decoded by table. The
JSON is rewritten after each part.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from hy3.kernels.scale_search_device import choose_device, quantize_bits_on
from hy3.kernels.scale_search_tensor import QuantizedTensor, quantize_tensor
from hy3.kernels.scale_search_triton import GROUPS_PER_PROGRAM, WARPS, quantize_groups
from hy3.nvfp4.codec import E4M3_VALUES, decode_e2m1, decode_e4m3, unpack_codes
from hy3.nvfp4.scales import RULES, sum_group, tensor_scale
from record import record

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from support.distributions import (  # noqa: E402
    EDGES,
    NAMES,
    WEIGHT_KINDS,
    make_column_weights,
    make_weight,
)

FIELDS = ("packed", "scales", "errors", "max_errors", "energies", "shifts")
BELL_NAMES = tuple(name for name in NAMES if name != "saturated")
CHUNK_GROUPS = 2**24
SWEEP_CHUNKS = 8  # of each of the eight distributions: 2^30 groups
ORACLE_GROUPS = 2**16
SPEED_GROUPS = 2**26  # 2.1 GB of BF16
EXPERT = (1536, 4096)  # gate or up of one Hy3 expert
CONFIGURATIONS = ((32, 1), (64, 1), (64, 2), (128, 2), (128, 4))


@triton.jit
def _sweep(
    patterns: tl.tensor,  # int16 [groups, 16], BF16
    values: tl.tensor,  # fp32 [256], of the E4M3 codes
    column_weights: tl.tensor,  # fp32 [groups_per_row, 16]
    least: tl.tensor,  # fp32 [groups]
    groups: tl.tensor,
    groups_per_row: tl.tensor,
    inverse_t: tl.tensor,
    LANES: tl.constexpr,
) -> None:
    """least[group] = the smallest weighted squared error of any code 8..126."""
    group = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    x = ()
    h = ()
    for i in tl.static_range(16):
        pattern = tl.load(patterns + group * 16 + i, mask=group < groups, other=0).to(tl.int32)
        x += (((pattern & 0x7FFF) << 16).to(tl.float32, bitcast=True) * inverse_t,)
        h += (tl.load(column_weights + group % groups_per_row * 16 + i),)
    best = tl.full([LANES], float("inf"), tl.float32)
    for code in range(8, 127):
        v = tl.load(values + code)
        total = tl.zeros([LANES], tl.float32)
        for i in tl.static_range(16):
            y = tl.div_rn(x[i], v)
            q = tl.where(y > 0.25, 0.5, 0.0) + tl.where(y > 0.75, 0.5, 0.0)
            q += tl.where(y > 1.25, 0.5, 0.0) + tl.where(y > 1.75, 0.5, 0.0)
            q += tl.where(y > 2.5, 1.0, 0.0) + tl.where(y > 3.5, 1.0, 0.0)
            q += tl.where(y > 5.0, 2.0, 0.0)
            difference = x[i] - q * v
            total = total + difference * difference * h[i]
        best = tl.minimum(best, total)
    tl.store(least + group, best, mask=group < groups)


def sweep_errors(weight: Tensor, t: float, column_weights: Tensor | None) -> Tensor:
    """The least error of each group [out, in / 16] over the 119 codes; weights of 1 change none."""
    if column_weights is None:
        column_weights = torch.ones(weight.shape[1], device=weight.device)
    least = torch.empty((weight.shape[0], weight.shape[1] // 16), device=weight.device)
    values = E4M3_VALUES.to(weight.device)
    grid = (triton.cdiv(least.numel(), 128),)
    _sweep[grid](
        weight.view(torch.int16),
        values,
        column_weights,
        least,
        least.numel(),
        least.shape[1],
        1.0 / t,
        LANES=128,
        enable_fp_fusion=False,
    )
    return least


def scale_of(weight: Tensor) -> float:
    """The tensor scale that a matrix of its own gets."""
    return tensor_scale(float(weight.abs().max()))


def column_weights_of(kind: str | None, weight: Tensor) -> Tensor | None:
    """Seeded weights of the columns of a matrix, on its device."""
    return None if kind is None else make_column_weights(kind, weight.shape[1]).to(weight.device)


def check_oracle() -> dict[str, Any]:
    """Fields whose bytes differ from the CPU oracle's, by distribution, rule and column weights."""
    differing: dict[str, list[str]] = {}
    kinds = (None, *WEIGHT_KINDS)
    for name in NAMES + EDGES:
        weight = make_weight(name, ORACLE_GROUPS)
        t = scale_of(weight)
        for rule, kind in itertools.product(RULES, kinds):
            h = column_weights_of(kind, weight)
            fast = quantize_tensor(weight.cuda(), t, rule, None if h is None else h.cuda())
            slow = quantize_tensor.oracle(weight, t, rule, h)
            wrong = [f for f in FIELDS if not same_bytes(getattr(fast, f), getattr(slow, f))]
            if wrong:
                differing[f"{name} {rule} {kind or 'unweighted'}"] = wrong
    cases = len(RULES) * len(kinds) * len(NAMES + EDGES)
    return {"groups_each": ORACLE_GROUPS, "cases": cases, "differing": differing}


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Equal shapes and equal bytes, wherever the tensors lie."""
    return one.shape == other.shape and one.cpu().numpy().tobytes() == other.numpy().tobytes()


def check_compressed_tensors() -> dict[str, Any] | None:
    """BF16 values that compressed-tensors decodes otherwise than we do; None without it."""
    try:
        from support.foreign_decoder import decode
    except ModuleNotFoundError:
        return None
    from hy3.nvfp4.tensor import NvFp4Tensor

    differing = 0
    for name in NAMES + EDGES:
        weight = make_weight(name, ORACLE_GROUPS)
        t = scale_of(weight)
        result = quantize_tensor(weight.cuda(), t, "exact")
        ours = NvFp4Tensor(result.packed.cpu(), result.scales.cpu(), 1.0 / t)
        theirs = decode(ours.packed, ours.scales, ours.divisor)
        differing += int((ours.dequantize() != theirs).sum())
    return {"groups_each": ORACLE_GROUPS, "sets": len(NAMES + EDGES), "differing": differing}


def decoded_errors(
    weight: Tensor, result: QuantizedTensor, t: float, column_weights: Tensor | None
) -> Tensor:
    """Squared errors of what the packed bytes decode to by table, in the documented order."""
    x = (weight.float() * (1.0 / t)).unflatten(-1, (-1, 16))
    values = decode_e2m1(unpack_codes(result.packed)).unflatten(-1, (-1, 16))
    squares = (x - values * decode_e4m3(result.scales).unsqueeze(-1)).square()
    return sum_group(squares if column_weights is None else squares * column_weights.view(-1, 16))


def check_sweep(name: str, chunks: int, kinds: tuple[str | None, ...]) -> dict[str, Any]:
    """Compare the search with the sweep on ``chunks`` times 2^24 groups of a distribution.

    The chunks take the ``kinds`` of column weights in turn.
    """
    counts: dict[str, Any] = {"groups": 0, "mismatches": 0, "error_bits_differ": 0}
    for seed in range(chunks):
        weight = make_weight(name, CHUNK_GROUPS, seed=1000 + seed, device="cuda")
        t, h = scale_of(weight), column_weights_of(kinds[seed % len(kinds)], weight)
        result = quantize_tensor(weight, t, "exact", h)
        least = sweep_errors(weight, t, h)
        counts["groups"] += least.numel()
        counts["mismatches"] += int((result.errors > least * (1 + 1e-6)).sum())
        counts["error_bits_differ"] += int((result.errors != least).sum())
        if seed == 0:
            # How many the same comparison finds where there is something to find.
            counts["mismatches_of_rule_max"] = int((result.max_errors > least * (1 + 1e-6)).sum())
            decoded = decoded_errors(weight, result, t, h)
            counts["packed_decode_to_another_error"] = int((decoded != result.errors).sum())
            exact, under_max = (e.double().sum() for e in (result.errors, result.max_errors))
            if under_max:
                counts["exact_over_max_error"] = round(float(exact / under_max), 5)
    return counts


def sweep_all(keep: Callable[[str, Any], None], kinds: tuple[str | None, ...], label: str) -> None:
    """Every distribution under some kinds of column weights; 2^30 groups and more."""
    found: dict[str, Any] = {}
    for name in NAMES + EDGES:
        found[name] = check_sweep(name, SWEEP_CHUNKS if name in BELL_NAMES else len(kinds), kinds)
        keep(f"sweep_of_119_codes{label}", found)
    for count in ("groups", "mismatches"):
        keep(f"sweep_{count}{label}", sum(each[count] for each in found.values()))


def median_ms(run: Callable[[], object], repetitions: int = 11) -> float:
    """Median device time of a call, from CUDA events around it, after two warming calls."""
    run(), run()
    times = []
    for _ in range(repetitions):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def rate(weight: Tensor, run: Callable[[], object]) -> float:
    """GB/s of BF16 input."""
    return round(weight.numel() * 2 / median_ms(run) / 1e6, 1)


def measure_configurations(weight: Tensor, t: float, h: Tensor | None) -> dict[str, float]:
    """GB/s of rule exact by groups and warps of a program."""
    return {
        f"{lanes} groups, {warps} warps": rate(
            weight, lambda c=(lanes, warps): quantize_groups(weight, t, "exact", h, *c)
        )
        for lanes, warps in CONFIGURATIONS
    }


def measure_distributions(kind: str | None) -> dict[str, float]:
    """GB/s of rule exact, which tries more codes on some weights than on others."""
    rates = {}
    for name in NAMES + EDGES:
        weight = make_weight(name, SPEED_GROUPS // 4, device="cuda")
        t, h = scale_of(weight), column_weights_of(kind, weight)
        rates[name] = rate(weight, lambda w=weight, t=t, h=h: quantize_tensor(w, t, "exact", h))
    return rates


def measure(weight: Tensor, kind: str | None) -> dict[str, Any]:
    """Rates on 2.1 GB of gaussian weights and on one expert's matrix."""
    t, h = scale_of(weight), column_weights_of(kind, weight)
    expert = weight.flatten()[: math.prod(EXPERT)].view(EXPERT)
    g = column_weights_of(kind, expert)
    return {
        "bytes": weight.numel() * 2,
        "distribution": "gauss",
        "column_weights": kind,
        "rules": {r: rate(weight, lambda r=r: quantize_tensor(weight, t, r, h)) for r in RULES},
        "exact_on_one_1536x4096_matrix": rate(
            expert, lambda: quantize_tensor(expert, t, "exact", g)
        ),
        "exact_by_configuration": measure_configurations(weight, t, h),
    }


def measure_surroundings(weight: Tensor) -> dict[str, float]:
    """What the rates stand beside: a plain copy, the oracle here, and arrays there and back."""
    t = scale_of(weight)
    copy = torch.empty_like(weight)
    expert = weight.flatten()[: math.prod(EXPERT)].view(EXPERT)
    bits = expert.cpu().view(torch.int16).numpy().view(np.uint16)
    gpu = choose_device("cuda")
    return {
        "copy_bytes_read_per_s": rate(weight, lambda: copy.copy_(weight)),
        "torch_oracle_on_this_gpu_exact": rate(
            weight[:65536], lambda: quantize_tensor.oracle(weight[:65536], t, "exact")
        ),
        "exact_from_host_to_host_1536x4096": rate(
            expert, lambda: quantize_bits_on(gpu, bits, t, "exact")
        ),
    }


def main() -> None:
    """Run every part and leave benchmarks/results/scale_search_gpu.json."""
    properties = torch.cuda.get_device_properties(0)
    hardware = {"gpu": properties.name, "gpu_multiprocessors": properties.multi_processor_count}
    versions = {"triton": triton.__version__, "cuda": torch.version.cuda}
    document: dict[str, Any] = {
        "configuration": {"groups_per_program": GROUPS_PER_PROGRAM, "warps": WARPS}
    }
    started = time.monotonic()

    def keep(key: str, value: Any) -> None:
        document[key] = value
        record("scale_search_gpu", {"results": document}, hardware=hardware, versions=versions)
        shown = "" if isinstance(value, dict) else value
        print(f"{time.monotonic() - started:.1f} s", key, shown, flush=True)

    weight = make_weight("gauss", SPEED_GROUPS, device="cuda")
    keep("gb_per_s", measure(weight, None))
    keep("gb_per_s_weighted", measure(weight, "spread"))
    keep("gb_per_s_beside", measure_surroundings(weight))
    del weight
    sweep_all(keep, (None,), "")
    sweep_all(keep, WEIGHT_KINDS, "_weighted")
    keep("cpu_oracle", check_oracle())
    keep("gb_per_s_exact_by_distribution", measure_distributions(None))
    keep("gb_per_s_exact_by_distribution_weighted", measure_distributions("spread"))
    keep("compressed_tensors_decoder", check_compressed_tensors())


if __name__ == "__main__":
    main()

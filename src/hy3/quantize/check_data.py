"""Checks of the bytes of one checkpoint: scales and finite values, in one pass.

Each shard is read once in file order and in chunks, so memory does not grow with its size.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hy3.checkpoint.engine_rules import engine_module
from hy3.checkpoint.file_hash import FileHash
from hy3.checkpoint.forms import TENSOR_SCALES
from hy3.checkpoint.header import TensorInfo, read_head
from hy3.checkpoint.names import fused_with, module_of
from hy3.checkpoint.reader import TensorReader
from hy3.quantize.progress import Advance
from hy3.quantize.verdict import Check, judge

CHUNK_BYTES = 8 * 2**20
_FP8_SCALES = (".weight_scale", ".weight_scale_inv")
_TENSOR_SCALES = tuple(f".{suffix}" for suffix in TENSOR_SCALES)
_SMALLEST_NORMAL_CODE = 8
_E4M3_NAN = 0x7F
_E4M3_MAX = 448.0
# Marlin keeps a scale only if it is at least this after the rescale of its layer.
_MARLIN_FLOOR = 2.0**-6


@dataclass
class ShardFindings:
    """What one shard's bytes say; modules are names of linears."""

    file_hash: FileHash
    not_finite: list[str] = field(default_factory=list)
    nan_scales: list[str] = field(default_factory=list)
    negative_scales: list[str] = field(default_factory=list)
    tensor_scales: dict[str, float] = field(default_factory=dict)  # tensor name -> stored value
    # module -> least and greatest non-zero code of its group scales, or none if all are zero
    code_ranges: dict[str, tuple[int, int] | None] = field(default_factory=dict)
    zero_codes: list[str] = field(default_factory=list)
    fp8_scales: int = 0  # tensors of them
    bad_fp8_scales: list[str] = field(default_factory=list)


def scan_shard(reader: TensorReader, shard: str, advance: Advance) -> ShardFindings:
    """Read one shard of the reader's checkpoint and look at every byte."""
    header = reader.checkpoint.headers[shard]
    digest = hashlib.sha256(read_head(header))
    findings = ShardFindings(FileHash("", header.file_bytes))
    for name, info in header.tensors.items():
        looker = _Looker(info)
        for chunk in reader.chunks(name, CHUNK_BYTES):
            digest.update(chunk)
            looker.look(chunk)
            advance(len(chunk))
        looker.report(findings)
    findings.file_hash = FileHash(digest.hexdigest(), header.file_bytes)
    return findings


class _Looker:
    """Collects facts about one tensor while its chunks pass by."""

    def __init__(self, info: TensorInfo) -> None:
        self.info = info
        self.is_group_scale = info.dtype == "F8_E4M3" and info.name.endswith(".weight_scale")
        self.is_fp8_scale = not self.is_group_scale and info.name.endswith(_FP8_SCALES)
        self.finite = self.positive = True
        self.counts = np.zeros(256, np.int64)  # of the codes of a group scale
        self.first: float | None = None

    def look(self, chunk: memoryview) -> None:
        data = np.frombuffer(chunk, np.uint8)
        if self.is_group_scale:
            self.counts += np.bincount(data, minlength=256)
        elif self.is_fp8_scale:
            self.positive &= _all_finite(data, self.info.dtype) and _all_positive(
                data, self.info.dtype
            )
        else:
            self.finite &= _all_finite(data, self.info.dtype)
        if self.info.dtype == "F32" and self.first is None:
            self.first = float(data[:4].view("<f4")[0])

    def report(self, findings: ShardFindings) -> None:
        name = self.info.name
        if not self.finite:
            findings.not_finite.append(name)
        findings.fp8_scales += self.is_fp8_scale
        if not self.positive:
            findings.bad_fp8_scales.append(name)
        if name.endswith(_TENSOR_SCALES) and self.first is not None:
            findings.tensor_scales[name] = self.first
        if self.is_group_scale:
            present = np.flatnonzero(self.counts)
            if (present & 0x7F == _E4M3_NAN).any():
                findings.nan_scales.append(name)
            if ((present > 0x80) & (present < 0xFF)).any():
                findings.negative_scales.append(name)
            codes = present[(present > 0) & (present < _E4M3_NAN)]
            span = (int(codes[0]), int(codes[-1])) if len(codes) else None
            findings.code_ranges[module_of(name)] = span
            if self.counts[0] or self.counts[0x80]:
                findings.zero_codes.append(name)


def _all_finite(data: NDArray[np.uint8], dtype: str) -> bool:
    if dtype == "BF16":
        return not bool(((data.view("<u2") & 0x7F80) == 0x7F80).any())
    if dtype == "F8_E4M3":
        return not bool(((data & 0x7F) == _E4M3_NAN).any())
    if dtype in ("F16", "F32", "F64"):
        kind = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype]
        return bool(np.isfinite(data.view(kind)).all())
    return True


def _all_positive(data: NDArray[np.uint8], dtype: str) -> bool:
    """Of floats only; the sign bit leads, and zero has no other."""
    signed = {"BF16": "<i2", "F16": "<i2", "F32": "<i4", "F64": "<i8"}.get(dtype)
    return signed is None or bool((data.view(signed) > 0).all())


def check_data(
    findings: list[ShardFindings], ours: bool, nonfinite: Collection[str] = ()
) -> Iterator[Check]:
    """The checks of scales and values; ``ours`` holds files to the rules of ``quantize``.

    ``nonfinite`` are the tensors that were knowingly kept with NaN or infinity.
    """
    yield _check_tensor_scales(findings, ours)
    nan = [name for each in findings for name in each.nan_scales]
    yield judge("scale_nan", nan, "group scales hold NaN", "no group scale is NaN")
    yield _check_scale_codes(findings, ours)
    bad = [name for each in findings for name in each.bad_fp8_scales]
    count = sum(each.fp8_scales for each in findings)
    fine = f"all scales of {count} FP8 weights are positive and finite"
    yield judge("fp8_scales", bad, "FP8 weights have scales that are not positive and finite", fine)
    yield _check_finite(findings, nonfinite)


def _check_finite(findings: list[ShardFindings], nonfinite: Collection[str]) -> Check:
    found = [name for each in findings for name in each.not_finite]
    broken = [name for name in found if name not in nonfinite]
    if found and not broken:
        detail = f"{len(found)} tensors hold NaN or infinity, kept as the manifest says"
        return Check("finite", "warn", detail, tuple(found))
    return judge("finite", broken, "tensors hold NaN or infinity", "every other value is finite")


def _check_tensor_scales(findings: list[ShardFindings], ours: bool) -> Check:
    scales = {name: value for each in findings for name, value in each.tensor_scales.items()}
    faults = []
    for name, value in scales.items():
        unequal = [each for each in fused_with(name) if scales.get(each, value) != value]
        if not (math.isfinite(value) and value > 0):
            faults.append(f"{name} is {value}")
        elif unequal:
            faults.append(f"{name} is {value}, {unequal[0]} is {scales[unequal[0]]}")
        elif ours and math.frexp(value)[0] != 0.5:
            faults.append(f"{name} is {value}, not a power of two")
    return judge(
        "tensor_scales",
        faults,
        "tensor scales are unusable or differ between gate and up or q, k and v",
        f"{len(scales)} tensor scales are sound and shared by what engines fuse",
    )


def _check_scale_codes(findings: list[ShardFindings], ours: bool) -> Check:
    negative = [f"{name} is negative" for each in findings for name in each.negative_scales]
    if negative:
        return judge("scale_codes", negative, "group scales have a sign", "")
    ranges = {module: span for each in findings for module, span in each.code_ranges.items()}
    zero = [name for each in findings for name in each.zero_codes]
    low = [
        f"{module}.weight_scale: code {span[0]}"
        for module, span in ranges.items()
        if span and span[0] < _SMALLEST_NORMAL_CODE
    ]
    if ours:
        faults = [*low, *(f"{name}: code 0" for name in zero)]
        return judge(
            "scale_codes", faults, "group scales have codes under 8", "all codes are 8-126"
        )
    flushed = list(_flushed(ranges))
    if flushed:
        return judge("scale_codes", flushed, "group scales become zero in Marlin", "")
    if low or zero:
        detail = f"{len(low) + len(zero)} group scales have codes under 8; Marlin keeps them"
        return Check("scale_codes", "warn", detail, (*low, *zero))
    return Check("scale_codes", "pass", "all codes are 8-126")


def _flushed(ranges: dict[str, tuple[int, int] | None]) -> Iterator[str]:
    """Modules with scales that Marlin's rescale, common to all experts of a layer, zeroes."""
    largest: dict[str, int] = defaultdict(int)
    for module, span in ranges.items():
        if span:
            unit = _marlin_unit(module)
            largest[unit] = max(largest[unit], span[1])
    for module, span in ranges.items():
        if span:
            room = _E4M3_MAX / _e4m3_value(largest[_marlin_unit(module)])
            rescale = 2.0 ** math.floor(math.log2(room))
            if _e4m3_value(span[0]) * rescale < _MARLIN_FLOOR:
                yield f"{module}.weight_scale: code {span[0]}"


def _marlin_unit(module: str) -> str:
    """What is rescaled together: gate and up, or down, of a layer's experts; else one module."""
    return engine_module(module).replace(".up_proj", ".gate_proj")


def _e4m3_value(code: int) -> float:
    exponent, mantissa = divmod(code, 8)
    return math.ldexp(8 + mantissa, exponent - 10) if exponent else math.ldexp(mantissa, -9)

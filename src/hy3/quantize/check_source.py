"""Checks against the source: copied bytes, and the error of every group of quantized weights.

Each shard of the source is read once in file order; one weight at a time is in memory.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hy3.checkpoint.census import Census
from hy3.checkpoint.file_hash import FileHash, hash_file
from hy3.checkpoint.forms import BF16, MODELOPT_NVFP4, NVFP4_FORMS
from hy3.checkpoint.header import read_head
from hy3.checkpoint.manifest import Manifest
from hy3.checkpoint.model_config import Hy3Config
from hy3.checkpoint.names import is_mtp, module_of, tensor_class
from hy3.checkpoint.reader import TensorReader
from hy3.kernels.scale_search import quantize_bits
from hy3.kernels.stored_errors import stored_errors
from hy3.quantize.check_data import CHUNK_BYTES
from hy3.quantize.progress import Advance
from hy3.quantize.verdict import Check, ClassError, judge, not_proved

# A group may be worse than under rule max by no more than the rounding of its fp32 sum.
_TOLERANCE = 1 + 1e-6

Bytes = NDArray[np.uint8]


@dataclass
class SourceFindings:
    """What one shard of the source says about the checkpoint that was made from it."""

    file_hash: FileHash
    changed: list[str] = field(default_factory=list)  # copies that are lost or not equal
    worse: list[str] = field(default_factory=list)  # weights with groups worse than rule max
    unlike: list[str] = field(default_factory=list)  # tensors of a form that is not compared
    unmeasured: list[str] = field(default_factory=list)  # quantized weights with unusable parts
    copies: int = 0
    groups: int = 0
    errors: dict[str, ClassError] = field(default_factory=dict)


class SourceComparison:
    """Compares one checkpoint with its source, shard by shard; threads may share it."""

    def __init__(
        self, source: TensorReader, made: TensorReader, census: Census, config: Hy3Config
    ) -> None:
        self.source, self.made = source, made
        self.census, self.config = census, config

    def compare_shard(self, shard: str, advance: Advance) -> SourceFindings:
        """Read one shard of the source whole, and what was made of its tensors."""
        header = self.source.checkpoint.headers[shard]
        digest = hashlib.sha256(read_head(header))
        findings = SourceFindings(FileHash("", header.file_bytes))
        for name, info in header.tensors.items():
            quantized = self.census.forms.get(name) in NVFP4_FORMS and info.dtype == "BF16"
            compare = self._compare_groups if quantized else self._compare_copy
            for chunk in compare(name, findings):
                digest.update(chunk)
                advance(chunk.nbytes)
        findings.file_hash = FileHash(digest.hexdigest(), header.file_bytes)
        return findings

    def without_source(self) -> SourceFindings:
        """Tensors and weights of the checkpoint that no shard of the source can speak of."""
        known = self.source.checkpoint.tensors
        quantized = {name for name, form in self.census.forms.items() if form in NVFP4_FORMS}
        modules = {module_of(name) for name in quantized}
        return SourceFindings(
            FileHash("", 0),
            unmeasured=sorted(quantized - known.keys()),
            unlike=[
                name
                for name in self.made.checkpoint.tensors
                if name not in known and module_of(name) not in modules
            ],
        )

    def _compare_copy(self, name: str, findings: SourceFindings) -> Iterator[memoryview]:
        """Passes the source's bytes on; the checkpoint must hold the same under the same name."""
        if self.census.forms.get(name, BF16) != BF16:
            findings.unlike.append(name)
        elif name not in self.made.checkpoint.tensors:
            findings.changed.append(f"{name} is lost")
        else:
            yield from self._compare_bytes(name, findings)
            return
        yield from self.source.chunks(name, CHUNK_BYTES)

    def _compare_bytes(self, name: str, findings: SourceFindings) -> Iterator[memoryview]:
        original, copy = self.source.checkpoint.info(name), self.made.checkpoint.info(name)
        equal = copy.spec == original.spec
        copied = self.made.chunks(name, CHUNK_BYTES)
        for chunk in self.source.chunks(name, CHUNK_BYTES):
            equal = equal and np.array_equal(chunk, next(copied))
            yield chunk
        findings.copies += 1
        if not equal:
            findings.changed.append(f"{name} differs")

    def _compare_groups(self, name: str, findings: SourceFindings) -> Iterator[memoryview]:
        """Passes the source's bytes on; measures the error of each group of 16 weights."""
        bits = self.source.array(name)
        yield bits.reshape(-1).view(np.uint8).data
        stored = self._stored(name)
        if stored is None or stored[1].shape != (bits.shape[0], bits.shape[1] // 16):
            findings.unmeasured.append(name)
            return
        packed, scales, t = stored
        errors = stored_errors(bits, packed, scales, t).astype(np.float64)
        under_max = quantize_bits(bits, t, "max")
        findings.groups += errors.size
        # A comparison that NaN makes false must not pass.
        worse = errors.size - int((errors <= under_max.max_errors * _TOLERANCE).sum())
        if worse:
            findings.worse.append(f"{name}: {worse} of {errors.size} groups")
        energy = float(under_max.energies.sum(dtype=np.float64))
        kind = tensor_class(name) + (" (MTP)" if is_mtp(name, self.config) else "")
        error = ClassError(float(errors.sum()) * t * t, energy * t * t)
        findings.errors[kind] = findings.errors.get(kind, ClassError(0.0, 0.0)) + error

    def _stored(self, name: str) -> tuple[Bytes, Bytes, float] | None:
        """Packed values, scale codes and the tensor scale as a multiplier; None if unusable."""
        module = module_of(name)
        packed, tensor_scale = f"{module}.weight_packed", f"{module}.weight_global_scale"
        if self.census.forms[name] == MODELOPT_NVFP4:
            packed, tensor_scale = name, f"{module}.weight_scale_2"
        scales = f"{module}.weight_scale"
        if not {packed, scales, tensor_scale} <= self.made.checkpoint.tensors.keys():
            return None
        value = float(self.made.array(tensor_scale).reshape(-1)[0])
        if not (math.isfinite(value) and value > 0):
            return None
        multiplier = value if self.census.forms[name] == MODELOPT_NVFP4 else 1.0 / value
        return self.made.array(packed), self.made.array(scales), multiplier


def check_source(findings: list[SourceFindings], rule: str | None) -> Iterator[Check]:
    """Checks against the source; ``rule`` is the manifest's, None for files that are not ours."""
    changed = [name for each in findings for name in each.changed]
    unlike = tuple(name for each in findings for name in each.unlike)
    copies = sum(each.copies for each in findings)
    if unlike and not changed:
        reason = f"{len(unlike)} tensors have no counterpart to compare with"
        yield Check("copied_bytes", "not_proved", reason, unlike)
    else:
        fine = f"{copies} copied tensors are equal to the source's"
        yield judge("copied_bytes", changed, "copied tensors are not the source's", fine)
    yield _check_group_errors(findings, rule)


def _check_group_errors(findings: list[SourceFindings], rule: str | None) -> Check:
    worse = tuple(name for each in findings for name in each.worse)
    unmeasured = tuple(name for each in findings for name in each.unmeasured)
    groups = sum(each.groups for each in findings)
    if rule is None:
        reason = f"no manifest names a rule; {len(worse)} weights have groups worse than rule max"
        return Check("group_errors", "not_proved", reason, worse)
    if unmeasured and not worse:
        reason = f"{len(unmeasured)} weights could not be compared with their source"
        return Check("group_errors", "not_proved", reason, unmeasured)
    fine = f"none of {groups} groups is worse than under rule max"
    return judge("group_errors", worse, "weights have groups worse than under rule max", fine)


def check_source_hashes(
    folder: Path, manifest: Manifest | None, shard_hashes: dict[str, FileHash]
) -> Check:
    """Whether the given source is the one that the manifest names."""
    if manifest is None:
        return not_proved("source_hashes", "there is no manifest to compare with")
    faults = []
    for name, wanted in manifest.source.items():
        path = folder / name
        if not path.is_file():
            faults.append(f"{name} is missing")
        elif (shard_hashes.get(name) or hash_file(path)) != wanted:
            faults.append(f"{name} is another file")
    fine = f"{len(manifest.source)} files are the ones that were quantized"
    return judge("source_hashes", faults, "files of the source are not those of the manifest", fine)


def sum_errors(findings: list[SourceFindings]) -> dict[str, ClassError]:
    """Errors of all shards by class."""
    total: dict[str, ClassError] = {}
    for each in findings:
        for name, error in each.errors.items():
            total[name] = total.get(name, ClassError(0.0, 0.0)) + error
    return total

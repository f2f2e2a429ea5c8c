"""Checks against the source: copied bytes, and the error of quantized weights under every scale.

Each shard of the source is read once in file order; one weight at a time is in memory. A source
that is quantized itself stands for what it decodes to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hy3.checkpoint.census import Census, take_census
from hy3.checkpoint.file_hash import FileHash
from hy3.checkpoint.forms import BF16, optional_parts, parts_of
from hy3.checkpoint.header import TensorSpec, read_head
from hy3.checkpoint.model_config import Hy3Config
from hy3.checkpoint.names import expected_tensors, is_mtp, module_of, tensor_class
from hy3.checkpoint.reader import TensorReader
from hy3.errors import InputError
from hy3.quantize.check_data import CHUNK_BYTES
from hy3.quantize.measure import bf16_error, measure
from hy3.quantize.progress import Advance
from hy3.quantize.verdict import Check, ClassError, judge
from hy3.stored.decode import decode
from hy3.stored.weight import StoredWeight, stored_weights


@dataclass
class SourceFindings:
    """What one shard of the source says about the checkpoint that was made from it."""

    file_hash: FileHash
    changed: list[str] = field(default_factory=list)  # copies that are lost or not equal
    worse: list[str] = field(default_factory=list)  # weights with units worse than plain rounding
    unlike: list[str] = field(default_factory=list)  # tensors of a form that is not compared
    unmeasured: list[str] = field(default_factory=list)  # quantized weights with unusable parts
    copies: int = 0
    units: int = 0  # groups of 16, rows and blocks
    errors: dict[str, ClassError] = field(default_factory=dict)


class SourceComparison:
    """Compares one checkpoint with its source, shard by shard; threads may share it."""

    def __init__(
        self, source: TensorReader, made: TensorReader, census: Census, config: Hy3Config
    ) -> None:
        self.source, self.made = source, made
        self.census, self.config = census, config
        origin = take_census(source.checkpoint, config)
        self._stored = stored_weights(config, origin)  # weights that are decoded, by their codes
        # Their scales, and those of activations: nothing beside the weights.
        self._scales = {
            part.name
            for name, spec in expected_tensors(config).items()
            for part in (
                *parts_of(spec, origin.forms[name])[1:],
                *optional_parts(spec, origin.forms[name]),
            )
        }

    def compare_shard(self, shard: str, advance: Advance) -> SourceFindings:
        """Read one shard of the source whole, and what was made of its tensors."""
        header = self.source.checkpoint.headers[shard]
        digest = hashlib.sha256(read_head(header))
        findings = SourceFindings(FileHash("", header.file_bytes))
        for name, info in header.tensors.items():
            quantized = self.census.forms.get(name, BF16) != BF16 and info.dtype == "BF16"
            compare = self._compare_quantized if quantized else self._compare_copy
            if name in self._stored:
                compare = self._compare_decoded
            elif name in self._scales:
                compare = self._pass_by
            for chunk in compare(name, findings):
                digest.update(chunk)
                advance(chunk.nbytes)
        findings.file_hash = FileHash(digest.hexdigest(), header.file_bytes)
        return findings

    def without_source(self) -> SourceFindings:
        """Tensors and weights of the checkpoint that no shard of the source can speak of."""
        decoded = {weight.spec.name for weight in self._stored.values()}
        known = self.source.checkpoint.tensors.keys() | decoded
        quantized = {name for name, form in self.census.forms.items() if form != BF16}
        modules = {module_of(name) for name in quantized}
        return SourceFindings(
            FileHash("", 0),
            unmeasured=sorted(quantized - known),
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
        if equal:
            return
        findings.changed.append(f"{name} differs")
        if copy.spec == original.spec and len(copy.shape) == 2 and copy.dtype == "BF16":
            pairs = (self.source.chunks(name, CHUNK_BYTES), self.made.chunks(name, CHUNK_BYTES))
            for chunks in zip(*pairs, strict=True):
                bits, found = (np.frombuffer(chunk, np.uint16) for chunk in chunks)
                self._add_error(name, bf16_error(bits, found), findings)

    def _pass_by(self, name: str, findings: SourceFindings) -> Iterator[memoryview]:
        """Of what is decoded with its weight, or of no use to what was made."""
        yield from self.source.chunks(name, CHUNK_BYTES)

    def _compare_decoded(self, name: str, findings: SourceFindings) -> Iterator[memoryview]:
        """Passes the bytes of the codes on; compares what they decode to."""
        stored = self._stored[name]
        codes = np.frombuffer(self.source.read(name), np.uint8)
        yield codes.data
        bits, _ = decode(self.source, stored, codes)
        weight = stored.spec.name
        if self.census.forms[weight] != BF16:
            self._measure(stored.spec, bits, findings)
        elif weight not in self.made.checkpoint.tensors:
            findings.changed.append(f"{weight} is lost")
        else:
            findings.copies += 1
            found = self.made.array(weight)
            if found.dtype != bits.dtype or not np.array_equal(found, bits):
                findings.changed.append(f"{weight} differs")

    def _compare_quantized(self, name: str, findings: SourceFindings) -> Iterator[memoryview]:
        """Passes the source's bytes on; measures the error under each scale."""
        bits = self.source.array(name)
        yield bits.reshape(-1).view(np.uint8).data
        self._measure(self.source.checkpoint.info(name).spec, bits, findings)

    def _measure(
        self, spec: TensorSpec, bits: NDArray[np.uint16], findings: SourceFindings
    ) -> None:
        name = spec.name
        weight = StoredWeight(spec, self.census.forms[name])
        try:
            measured = measure(bits, self.made, weight)
        except InputError:  # the checks of the bytes name what is wrong with it
            findings.unmeasured.append(name)
            return
        findings.units += measured.units
        if measured.worse:
            findings.worse.append(f"{name}: {measured.worse} of {measured.units}")
        self._add_error(name, measured.error, findings)

    def _add_error(self, name: str, error: ClassError, findings: SourceFindings) -> None:
        kind = tensor_class(name) + (" (MTP)" if is_mtp(name, self.config) else "")
        findings.errors[kind] = findings.errors.get(kind, ClassError(0.0, 0.0)) + error


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
    units = sum(each.units for each in findings)
    if rule is None:
        reason = f"no manifest names a rule; {len(worse)} weights are worse than plain rounding"
        return Check("group_errors", "not_proved", reason, worse)
    if unmeasured and not worse:
        reason = f"{len(unmeasured)} weights could not be compared with their source"
        return Check("group_errors", "not_proved", reason, unmeasured)
    fine = f"none of {units} groups, rows and blocks is worse than plain rounding"
    return judge("group_errors", worse, "weights are worse than plain rounding", fine)


def sum_errors(findings: list[SourceFindings]) -> dict[str, ClassError]:
    """Errors of all shards by class."""
    total: dict[str, ClassError] = {}
    for each in findings:
        for name, error in each.errors.items():
            total[name] = total.get(name, ClassError(0.0, 0.0)) + error
    return total

"""``Census``: what a checkpoint holds, by class and dtype, and what it should hold but does not.

Reads headers only, so the largest checkpoint takes seconds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod

from hy3.checkpoint.forms import (
    BF16,
    INPUT_SCALES,
    NVFP4_FORMS,
    Part,
    form_of,
    optional_parts,
    parts_of,
    role_of,
)
from hy3.checkpoint.header import TensorInfo, TensorSpec
from hy3.checkpoint.index import Checkpoint
from hy3.checkpoint.model_config import Hy3Config
from hy3.checkpoint.names import expected_tensors, is_mtp, is_routed_expert, tensor_class


@dataclass(frozen=True)
class ClassCount:
    """Tensors of one class, role and dtype."""

    name: str
    role: str  # see ``forms.role_of``
    dtype: str
    tensors: int
    nbytes: int


@dataclass(frozen=True)
class Mismatch:
    """A tensor that is there but is not what it must be; the texts are dtype and shape."""

    name: str
    expected: str
    found: str


@dataclass(frozen=True)
class MtpCount:
    """The MTP layer's share, and the form of its routed experts."""

    tensors: int
    nbytes: int
    experts: str


@dataclass(frozen=True)
class Census:
    """Counts, forms and gaps of one checkpoint."""

    classes: tuple[ClassCount, ...]
    forms: dict[str, str]  # expected weight -> form, in canonical order
    weight_count: int  # elements of the model, however they are stored
    scheme: str
    mtp: MtpCount | None  # None when the config has no MTP layer
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[Mismatch, ...]

    def quantized_counts(self) -> list[tuple[str, str, int]]:
        """(class, form, weights) of what is not BF16, most weights first."""
        counts = Counter(
            (tensor_class(name), form) for name, form in self.forms.items() if form != BF16
        )
        return [(*key, count) for key, count in counts.most_common()]


def take_census(checkpoint: Checkpoint, config: Hy3Config) -> Census:
    """Compare every stored tensor with the expected ones."""
    expected = expected_tensors(config)
    stored = {name: checkpoint.info(name) for name in checkpoint.tensors}
    forms = {name: form_of(spec, stored.get) for name, spec in expected.items()}
    missing: list[str] = []
    mismatched: list[Mismatch] = []
    accounted: set[str] = set()
    weight_count = 0
    for name, spec in expected.items():
        required = parts_of(spec, forms[name])
        present = [part for part in required if part.name in stored]
        missing += [part.name for part in required if part.name not in stored]
        weight_count += prod(spec.shape) if present else 0
        present += [part for part in optional_parts(spec, forms[name]) if part.name in stored]
        accounted |= {part.name for part in present}
        mismatched += [
            Mismatch(part.name, _describe(part), _describe(stored[part.name]))
            for part in present
            if not part.accepts(stored[part.name])
        ]
    return Census(
        classes=_count_classes(stored),
        forms=forms,
        weight_count=weight_count,
        scheme=_scheme(forms, stored),
        mtp=_count_mtp(expected, forms, stored, config),
        missing=tuple(missing),
        unexpected=tuple(name for name in stored if name not in accounted),
        mismatched=tuple(mismatched),
    )


def _describe(part: Part | TensorInfo) -> str:
    if isinstance(part, TensorInfo):
        return f"{part.dtype} {list(part.shape)}"
    shape = f" {list(part.shapes[0])}" if part.shapes else ""
    return f"{part.dtypes[0]}{shape}"


def _count_classes(stored: dict[str, TensorInfo]) -> tuple[ClassCount, ...]:
    counts: Counter[tuple[str, str, str]] = Counter()
    sizes: Counter[tuple[str, str, str]] = Counter()
    for name, info in stored.items():
        key = (tensor_class(name), role_of(name, info.dtype), info.dtype)
        counts[key] += 1
        sizes[key] += info.nbytes
    rows = [ClassCount(*key, counts[key], sizes[key]) for key in counts]
    return tuple(sorted(rows, key=lambda row: (-row.nbytes, row.name, row.role, row.dtype)))


def _scheme(forms: dict[str, str], stored: dict[str, TensorInfo]) -> str:
    """The quantized forms in use; NVFP4 says whether activations are quantized as well."""
    used = sorted(set(forms.values()) - {BF16})
    if not used:
        return BF16
    inputs = any(name.rpartition(".")[2] in INPUT_SCALES for name in stored)
    kind = "-w4a4" if inputs else "-w4a16"
    return "+".join(form + kind if form in NVFP4_FORMS else form for form in used)


def _count_mtp(
    expected: dict[str, TensorSpec],
    forms: dict[str, str],
    stored: dict[str, TensorInfo],
    config: Hy3Config,
) -> MtpCount | None:
    if not config.num_mtp_layers:
        return None
    own = [info for name, info in stored.items() if is_mtp(name, config)]
    experts = {forms[name] for name in expected if is_mtp(name, config) and is_routed_expert(name)}
    return MtpCount(len(own), sum(info.nbytes for info in own), "+".join(sorted(experts)))

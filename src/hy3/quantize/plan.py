"""``Plan``: what becomes of every tensor, decided from headers before any weight is read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hy3 import __version__
from hy3.checkpoint.census import Census, take_census
from hy3.checkpoint.file_hash import FileHash, hash_bytes
from hy3.checkpoint.forms import BF16, FORMAT_NAMES, NVFP4_FORMS, stored_specs
from hy3.checkpoint.header import TensorInfo, TensorSpec
from hy3.checkpoint.index import Checkpoint
from hy3.checkpoint.json_file import read_json_object
from hy3.checkpoint.manifest import Origin, Parameters, read_manifest
from hy3.checkpoint.model_config import CONFIG_NAME, Hy3Config, parse_config
from hy3.checkpoint.names import expected_tensors, fused_with, is_mtp, layer_of, tensor_class
from hy3.checkpoint.quantization_config import METHOD_COMPRESSED_TENSORS
from hy3.errors import InputError
from hy3.quantize.assignment import Assignment, assign
from hy3.quantize.recipe import COPY, Recipe, Rule
from hy3.quantize.resume import FileStamp
from hy3.quantize.source import Source, local_source, small_names
from hy3.quantize.stats import layer_key
from hy3.stored.weight import StoredWeight, stored_weights

_TWIN = Recipe("bf16", "What is quantized, decoded.", (Rule("class", "*", COPY),), "none")
DROPPED = "dropped"  # what is read with another tensor, or of no use to what is written


@dataclass(frozen=True)
class Step:
    """One tensor of the source and what is written for it."""

    source: TensorInfo
    outputs: tuple[TensorSpec, ...]  # the parts of the form; the weight's own spec; or nothing
    form: str  # COPY, DROPPED or one of hy3.checkpoint.forms
    label: str  # how reports name its kind
    sharing: tuple[str, ...] = ()  # other weights under the same tensor scale
    stored: StoredWeight | None = None  # what is decoded first, with ``source`` as its codes

    @property
    def quantized(self) -> bool:
        """Whether the tensor is encoded; otherwise it is copied or dropped."""
        return self.form not in (COPY, DROPPED)

    @property
    def weight(self) -> TensorSpec:
        """The weight in BF16, however it is stored."""
        return self.stored.spec if self.stored else self.source.spec

    @property
    def whole(self) -> bool:
        """Whether it is worked on in one piece, not in chunks."""
        return self.quantized or self.stored is not None

    @property
    def stats_key(self) -> str:
        """Under which its statistics are summed."""
        return layer_key(self.label, layer_of(self.weight.name))

    @property
    def output_bytes(self) -> int:
        """Bytes of what is written for it."""
        return sum(spec.nbytes for spec in self.outputs)


@dataclass(frozen=True)
class PlanLine:
    """The steps of one kind, for people."""

    label: str
    format: str
    quantized: bool
    tensors: int
    source_bytes: int
    output_bytes: int


@dataclass(frozen=True)
class Plan:
    """Everything that decides the output's bytes, the weights' values aside."""

    checkpoint: Checkpoint
    config: Hy3Config
    raw_config: dict[str, Any]
    recipe: Recipe
    assignment: Assignment
    parameters: Parameters
    shards: dict[str, tuple[Step, ...]]  # file name of an output -> steps in the source's order
    stored: dict[str, StoredWeight]  # weights that are decoded; empty for a source in BF16
    source_scheme: str  # as the census names it
    stamps: dict[str, FileStamp]  # config, index and shards, as they looked before reading
    small_hashes: dict[str, FileHash]  # config and index
    origin: Origin | None  # None for a folder: nothing in it can be trusted to say

    @property
    def source_bytes(self) -> int:
        """Tensor bytes to read."""
        return self.checkpoint.total_bytes

    @property
    def output_bytes(self) -> int:
        """Tensor bytes to write: the index's total_size."""
        return sum(step.output_bytes for step in self.steps())

    @property
    def has_nvfp4(self) -> bool:
        """Whether anything becomes NVFP4, whose scales alone follow a rule that is chosen."""
        return bool(self.assignment.quantized & set(NVFP4_FORMS))

    def codes_of(self, weight: str) -> str:
        """The tensor of the source that holds a weight, its scales aside."""
        return self.stored[weight].names[0] if weight in self.stored else weight

    def readers(self, pending: Collection[str]) -> dict[str, set[str]]:
        """Shard of the source -> the ``pending`` ones that read it: itself, or for its scales."""
        found = {name: {name} for name in pending}
        for name in pending:
            for step in self.shards[name]:
                for scale in step.stored.names[1:] if step.stored else ():
                    found.setdefault(self.checkpoint.tensors[scale], set()).add(name)
        return found

    def steps(self) -> Iterator[Step]:
        """All steps, shard by shard."""
        for steps in self.shards.values():
            yield from steps

    def written_specs(self) -> dict[str, list[TensorSpec]]:
        """What each shard of the output holds."""
        return {
            name: [spec for step in steps for spec in step.outputs]
            for name, steps in self.shards.items()
        }

    def lines(self) -> list[PlanLine]:
        """The plan by kind of tensor, largest first."""
        groups: dict[tuple[str, str, bool], list[Step]] = {}
        for step in self.steps():
            form = DROPPED if step.form == DROPPED else step.weight.dtype
            form = FORMAT_NAMES[step.form] if step.quantized else form
            groups.setdefault((step.label, form, step.quantized), []).append(step)
        lines = [
            PlanLine(
                label,
                form,
                quantized,
                len(steps),
                sum(step.source.nbytes for step in steps),
                sum(step.output_bytes for step in steps),
            )
            for (label, form, quantized), steps in groups.items()
        ]
        return sorted(lines, key=lambda line: (-line.source_bytes, line.label))


def plan_source(
    source: Source,
    recipe: Recipe,
    scales: str,
    mtp: str,
    layout: str = METHOD_COMPRESSED_TENSORS,
    nonfinite: Collection[str] = (),
    decodes: bool = False,
) -> Plan:
    """Check that ``source`` is a whole checkpoint and plan its shards.

    Args:
        recipe: with the user's options applied
        scales: the scale rule of NVFP4
        mtp: "same" treats the MTP layer as the others, "bf16" copies it
        layout: how the parts of a weight are named, see ``scheme_writer.LAYOUTS``
        nonfinite: tensors with NaN or infinity that are to be copied as they are
        decodes: whether the source must be quantized already, and is decoded; else it must not be
    """
    whole = _read_whole(source, decodes)
    nonfinite = whole.nonfinite.union(nonfinite)
    assignment = assign(whole.config, recipe, mtp, layout, nonfinite)
    return _lay_out(whole, recipe, assignment, _parameters(recipe, scales, assignment, nonfinite))


def plan_twin(folder: Path) -> Plan:
    """Every weight of the quantized checkpoint in ``folder`` as BF16, and no more changed."""
    whole = _read_whole(local_source(folder), decodes=True)
    forms = dict.fromkeys(expected_tensors(whole.config), BF16)
    assignment = Assignment(forms, "same", METHOD_COMPRESSED_TENSORS)
    parameters = _parameters(_TWIN, "max", assignment, whole.nonfinite)
    return _lay_out(whole, _TWIN, assignment, parameters)


@dataclass(frozen=True)
class _Whole:
    """A source in which nothing is missing or strange."""

    source: Source
    raw_config: dict[str, Any]
    config: Hy3Config
    census: Census
    nonfinite: frozenset[str]  # of a quantized source: what its manifest says it keeps


def _read_whole(source: Source, decodes: bool) -> _Whole:
    checkpoint, folder = source.checkpoint, source.checkpoint.folder
    raw_config = read_json_object(folder / CONFIG_NAME)
    config = parse_config(raw_config, where=str(folder / CONFIG_NAME))
    census = take_census(checkpoint, config)
    _check_whole(folder, census, decodes)
    manifest = read_manifest(folder) if decodes else None
    nonfinite = manifest.parameters.nonfinite_names if manifest else frozenset()
    return _Whole(source, raw_config, config, census, nonfinite)


def _lay_out(whole: _Whole, recipe: Recipe, assignment: Assignment, parameters: Parameters) -> Plan:
    source, config, census = whole.source, whole.config, whole.census
    checkpoint, folder = source.checkpoint, source.checkpoint.folder
    stored = stored_weights(config, census)
    shards = {
        name: tuple(
            _step(info, stored.get(info.name), assignment, config)
            for info in header.tensors.values()
        )
        for name, header in checkpoint.headers.items()
    }
    return Plan(
        checkpoint=checkpoint,
        config=config,
        raw_config=whole.raw_config,
        recipe=recipe,
        assignment=assignment,
        parameters=parameters,
        # A shard of which nothing is kept, as one with scales of the KV cache, has no output.
        shards={
            name: steps for name, steps in shards.items() if any(step.outputs for step in steps)
        },
        stored={weight.spec.name: weight for weight in stored.values()},
        source_scheme=census.scheme,
        stamps=source.stamps,
        small_hashes={
            name: hash_bytes((folder / name).read_bytes()) for name in small_names(folder)
        },
        origin=source.origin,
    )


def _parameters(
    recipe: Recipe, scales: str, assignment: Assignment, nonfinite: Collection[str]
) -> Parameters:
    """Normalised: FP8 has one rule, whatever was asked for."""
    searched = assignment.quantized & set(NVFP4_FORMS)
    return Parameters(
        recipe=recipe.name,
        scales=scales if searched else "max",
        mtp=assignment.mtp,
        hy3_version=__version__,
        format=assignment.layout,
        fp8_activations=recipe.fp8_activations,
        lm_head=recipe.lm_head,
        rules=recipe.encode_rules(),
        nonfinite=",".join(sorted(nonfinite)),
    )


def _step(
    info: TensorInfo, stored: StoredWeight | None, assignment: Assignment, config: Hy3Config
) -> Step:
    label = tensor_class(info.name) + (" (MTP)" if is_mtp(info.name, config) else "")
    spec = stored.spec if stored else info.spec
    form = assignment.forms.get(spec.name, DROPPED)  # scales are no weights
    if form == DROPPED:
        return Step(info, (), form, label)
    if form == BF16:
        return Step(info, (spec,), COPY, label, stored=stored)
    sharing = fused_with(spec.name) if form in NVFP4_FORMS else ()
    return Step(info, stored_specs(spec, form), form, label, sharing, stored)


def _check_whole(folder: Path, census: Census, decodes: bool) -> None:
    """A checkpoint with gaps, strangers or another kind of weights is no source."""
    hint = "hy3 inspect lists what is wrong; fetch the checkpoint again"
    if decodes and census.scheme == BF16:
        raise InputError("holds bf16 weights", hint="hy3 quantize is for those", where=str(folder))
    if census.scheme != BF16 and not decodes:
        raise InputError(
            f"holds {census.scheme} weights, not BF16 alone",
            hint="fetch the original BF16 checkpoint, or let hy3 requantize decode this one",
            where=str(folder),
        )
    names = [mismatch.name for mismatch in census.mismatched]
    for problem, found in (
        ("missing", census.missing),
        ("unexpected", census.unexpected),
        ("of another dtype or shape than the config says", names),
    ):
        if found:
            raise InputError(
                f"{len(found)} tensors are {problem}, the first {found[0]!r}",
                hint=hint,
                where=str(folder),
            )

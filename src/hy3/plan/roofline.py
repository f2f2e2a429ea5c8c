"""The time of one decode step, and of prefill, as a sum of terms that can be printed.

A step reads every weight that any of its tokens needs, and the KV cache of each sequence, at a
share of the memory's bandwidth; it waits for its collectives; and it costs a floor of launches and
scheduling, which grows with the layers and not with bytes. Drafts read the MTP layer once for each
draft, widen the verifying step to depth + 1 tokens a sequence, and cost a floor of their own each.

Pipeline stages work on as many batches at a time: the sequences are dealt out to these, each batch
passes all stages one after another, and a step is one pass of one batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb, prod

from hy3.hardware.device import Hardware
from hy3.plan.calibration import EAGER, GRAPHS, Calibration
from hy3.plan.model_shape import LOOKED_UP, ROUTED, ModelShape, WeightClass
from hy3.plan.settings import Settings
from hy3.plan.sharding import kv_rank_bytes, rank_bytes

# Share of the tensor cores' dense BF16 peak that prefill reached: 0.22 and 0.29 on an H200 with
# vLLM 0.26 (Hy-MT2-30B and Hy3 dimensions, 8000 tokens). The interval doubles and halves it.
_PREFILL_EFFICIENCY = 0.25
_DRAFT_FLOOR = "draft floor"


@dataclass(frozen=True)
class Workload:
    """What is asked of the engine."""

    context_tokens: int  # already in each sequence's cache, on average
    # Chance that draft i is accepted given that those before it were, as far as the depth goes.
    acceptance: tuple[float, ...] = ()


@dataclass(frozen=True)
class TimeTerm:
    """A part of a step."""

    name: str
    seconds: float
    reason: str


@dataclass(frozen=True)
class Prediction:
    """Decode speed of a launch; the interval is what measurements scattered by."""

    terms: tuple[TimeTerm, ...]
    tokens_per_step: float  # of one sequence
    stream_tok_s: float
    low: float  # factors on the speed
    high: float
    confidence: str
    told: bool = True  # False where the speed is a number that nothing measured stands behind

    @property
    def step_s(self) -> float:
        """One step of all sequences of a batch together."""
        return sum(term.seconds for term in self.terms)

    @property
    def model_s(self) -> float:
        """What of a step grows with the model: all but launching the drafter."""
        return sum(term.seconds for term in self.terms if term.name != _DRAFT_FLOOR)


@dataclass(frozen=True)
class InFlight:
    """How an engine deals its sequences out to pipeline stages."""

    batches: int
    streams: int  # in the fullest of them


def in_flight(settings: Settings) -> InFlight:
    """Evenly dealt, one batch for each stage as far as there are sequences.

    vLLM 0.26 keeps ``pipeline_parallel_size`` batches in its queue and puts into each what is ready
    then, so sequences that arrive together stay in one batch; SGLang deals them out evenly.
    """
    batches = min(settings.pipeline_parallel, settings.concurrency)
    return InFlight(batches, -(-settings.concurrency // batches))


def distinct_experts(experts: int, experts_per_token: int, tokens: int) -> float:
    """Expected number of experts that ``tokens`` of independent routing need, in one layer."""
    if not experts:
        return 0.0
    return experts * (1 - (1 - experts_per_token / experts) ** tokens)


def fullest_share(things: int, ranks: int) -> float:
    """Expected number on the fullest rank when each thing lies on any of them.

    The ranks are taken as independent, which is 6 % too low at the most for 8 things on 2 to 8
    ranks: the sum over n of the chance that some rank has more than n.
    """
    share, expected, below = 1 / ranks, 0.0, 0.0
    for count in range(things):
        below += comb(things, count) * share**count * (1 - share) ** (things - count)
        expected += 1 - min(below, 1.0) ** ranks
    return expected


def tokens_per_step(settings: Settings, acceptance: tuple[float, ...]) -> float:
    """Tokens that a sequence gains in a step: the model's own and the drafts that hold."""
    depth = settings.draft_depth
    assert len(acceptance) >= depth, "an acceptance is needed for each draft"
    return 1.0 + sum(prod(acceptance[: i + 1]) for i in range(depth))


def predict_decode(
    shape: ModelShape,
    hardware: Hardware,
    settings: Settings,
    workload: Workload,
    calibration: Calibration,
) -> Prediction:
    """Speed of each of ``settings.concurrency`` streams.

    With pipeline stages the interval reaches down to all streams in one batch.
    """
    dealt = in_flight(settings)
    batch = replace(settings, concurrency=dealt.streams)
    terms = _terms(shape, hardware, batch, workload, calibration)
    step_s = sum(term.seconds for term in terms)
    low = calibration.low
    if dealt.batches > 1:
        together = _terms(shape, hardware, settings, workload, calibration)
        low *= step_s / sum(term.seconds for term in together)
    gained = tokens_per_step(settings, workload.acceptance)
    return Prediction(
        terms=tuple(terms),
        tokens_per_step=gained,
        stream_tok_s=gained / step_s,
        low=low,
        high=calibration.high,
        confidence=calibration.confidence,
    )


def _terms(
    shape: ModelShape,
    hardware: Hardware,
    settings: Settings,
    workload: Workload,
    calibration: Calibration,
) -> list[TimeTerm]:
    """Of one pass of a batch of ``settings.concurrency`` streams through all stages."""
    bandwidth = hardware.device.bandwidth_bytes_s * calibration.efficiency
    share = f"at {calibration.efficiency:.2f} of {hardware.device.bandwidth_bytes_s / 1e9:.0f} GB/s"
    terms = [
        TimeTerm(name, nbytes / bandwidth, f"{nbytes / 1e9:.2f} GB {share}")
        for name, nbytes in step_bytes(shape, settings, workload).items()
        if nbytes
    ]
    terms += _collectives(shape, hardware, settings)
    floor = calibration.floor_per_layer_s * shape.layers
    reason = (
        f"launches and scheduling, {calibration.floor_per_layer_s * 1e6:.0f} us x {shape.layers} "
        f"layers ({calibration.mode}, {calibration.kind})"
    )
    terms.append(TimeTerm("step floor", floor, reason))
    if settings.draft_depth:
        reason = f"launch and sampling of the drafter, {settings.draft_depth} times"
        floor = settings.draft_depth * calibration.draft_floor_s
        terms.append(TimeTerm(_DRAFT_FLOOR, floor, reason))
    return terms


def step_bytes(shape: ModelShape, settings: Settings, workload: Workload) -> dict[str, float]:
    """What one step reads on the busiest rank, by class; a batch passes its stages one after
    another, so their reads add up."""
    verified = settings.concurrency * (settings.draft_depth + 1)
    settings = replace(settings, pipeline_parallel=1)
    found: dict[str, float] = {}
    for each in shape.classes:
        if each.name in LOOKED_UP or each.mtp:
            continue
        found[each.name] = _read_bytes(each, shape, settings, verified)
    cached = float(settings.concurrency * workload.context_tokens)
    found["kv cache"] = cached * kv_rank_bytes(shape, settings)
    if settings.draft_depth:
        once = sum(
            _read_bytes(each, shape, settings, settings.concurrency)
            for each in shape.classes
            if each.mtp or each.name == "lm_head"
        )
        found["drafts"] = settings.draft_depth * once
    return found


def predict_prefill_s(
    shape: ModelShape, hardware: Hardware, settings: Settings, prompt_tokens: int
) -> tuple[float, float]:
    """Fastest and slowest time to the first token of one prompt on an idle engine."""
    flops = 2.0 * active_parameters(shape) * prompt_tokens / settings.tensor_parallel
    layers = shape.layers
    attention = 2 * 2.0 * layers * shape.heads * shape.head_dim * prompt_tokens**2 / 2
    seconds = (flops + attention / settings.tensor_parallel) / (
        hardware.device.flops * _PREFILL_EFFICIENCY
    )
    return seconds / 2, seconds * 2


def active_parameters(shape: ModelShape) -> float:
    """Parameters that one token of prefill meets; the head only sees the last one."""
    active = 0.0
    for each in shape.classes:
        if each.mtp or each.name in (*LOOKED_UP, "lm_head"):
            continue
        part = shape.experts_per_token / shape.experts if each.name == ROUTED else 1.0
        active += each.parameters * part
    return active


def mode_of(settings: Settings) -> str:
    """The calibration's mode."""
    return GRAPHS if settings.graphs else EAGER


def _read_bytes(each: WeightClass, shape: ModelShape, settings: Settings, tokens: int) -> float:
    whole = float(rank_bytes(each, shape, settings))
    if each.name != ROUTED:
        return whole
    used = distinct_experts(shape.experts, shape.experts_per_token, tokens)
    if settings.expert_parallel:
        # Whole experts on each rank, and all wait for the rank with most of those in use.
        busiest = fullest_share(round(used), settings.tensor_parallel)
        return whole * settings.tensor_parallel * busiest / shape.experts
    return whole * used / shape.experts


def _collectives(shape: ModelShape, hardware: Hardware, settings: Settings) -> list[TimeTerm]:
    device = hardware.device
    terms = []
    if settings.tensor_parallel > 1:
        # Stages share the machines evenly, so each spans some of them.
        spanned = -(-hardware.nodes // settings.pipeline_parallel)
        layers = shape.layers + settings.draft_depth
        count = 2 * layers + 1 + settings.draft_depth
        tokens = settings.concurrency * (settings.draft_depth + 1)
        nbytes = 2 * shape.hidden_size * tokens
        # A ring between machines takes 2 (n - 1) steps, and small messages pay for each of them;
        # peers in one machine reach each other at once.
        hops = max(spanned - 1, 1)
        one = hops * device.collective_s + 2 * nbytes / device.link_bytes_s
        reason = f"{count} all-reduces of {nbytes / 1e3:.0f} kB, {one * 1e6:.0f} us each"
        terms.append(TimeTerm("collectives", count * one, reason))
    if settings.pipeline_parallel > 1:
        hops = settings.pipeline_parallel - 1
        reason = f"{hops} hand-overs between stages"
        terms.append(TimeTerm("stages", hops * device.collective_s, reason))
    return terms

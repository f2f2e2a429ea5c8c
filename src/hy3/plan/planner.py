"""``make_plan``: the configuration for a model on some hardware, every choice with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hy3.hardware.device import Hardware
from hy3.plan.calibration import EAGER, GRAPHS
from hy3.plan.engine_kernels import KernelChoice, kernel_choices
from hy3.plan.footprint import Footprint, footprint, largest_concurrency, largest_context
from hy3.plan.model_shape import ModelShape, decoded
from hy3.plan.prediction import predict
from hy3.plan.request import ACCEPTANCE_SOURCE, Request
from hy3.plan.roofline import InFlight, Prediction, in_flight, predict_prefill_s
from hy3.plan.settings import NATIVE, VLLM, Settings
from hy3.plan.sharding import Constraint, broken_rules, broken_splits
from hy3.plan.split import choose_split

_ALTERNATIVE_DEPTHS = (0, 1, 2)
_USUAL_CONTEXT = 32768
FP8_CLASSES = ("attention", "shared_expert", "dense_mlp")


@dataclass(frozen=True)
class Choice:
    """A setting, why it has this value, and who says so."""

    setting: str
    value: str
    reason: str
    source: str


@dataclass(frozen=True)
class Alternative:
    """The same launch with one thing changed."""

    name: str
    tok_s_stream: float | None  # None, as its ends, where no speed can be told
    low: float | None
    high: float | None
    kv_tokens: int
    fits: bool


@dataclass(frozen=True)
class LaunchPlan:
    """What ``hy3 plan`` answers."""

    shape: ModelShape
    hardware: Hardware
    settings: Settings
    choices: tuple[Choice, ...]
    broken: tuple[Constraint, ...]
    memory: Footprint
    largest_context: int
    largest_concurrency: int
    decode: Prediction
    # Of a prompt of sequence_tokens, fastest and slowest; None where no speed can be told.
    prefill_s: tuple[float, float] | None
    sequence_tokens: int
    kernels: tuple[KernelChoice, ...]
    alternatives: tuple[Alternative, ...]

    @property
    def in_flight(self) -> InFlight:
        """How the sequences are dealt out to pipeline stages."""
        return in_flight(self.settings)

    @property
    def fits(self) -> bool:
        """Whether the engine would start with a sequence of the whole context."""
        return not self.broken and self.memory.starts(self.settings)


def make_plan(shape: ModelShape, hardware: Hardware, request: Request) -> LaunchPlan:
    """Resolve what was left open and predict memory and speed."""
    if request.engine == NATIVE:
        shape = decoded(shape)
    settings, choices = _resolve(shape, hardware, request)
    memory = footprint(shape, hardware.device, settings, request.free_bytes)
    decode = predict(shape, hardware, settings, request)
    tokens = request.tokens_of_a_sequence(settings.context)
    return LaunchPlan(
        shape=shape,
        hardware=hardware,
        settings=settings,
        choices=tuple(choices),
        broken=tuple(broken_rules(shape, hardware, settings)),
        memory=memory,
        largest_context=largest_context(memory, settings, shape.max_positions),
        largest_concurrency=largest_concurrency(memory, settings),
        decode=decode,
        prefill_s=predict_prefill_s(shape, hardware, settings, tokens) if decode.told else None,
        sequence_tokens=tokens,
        kernels=tuple(kernel_choices(shape, hardware.device, settings)),
        alternatives=tuple(_alternatives(shape, hardware, settings, request)),
    )


def _resolve(
    shape: ModelShape, hardware: Hardware, request: Request
) -> tuple[Settings, list[Choice]]:
    choices: list[Choice] = []

    def settle(setting: str, value: object, reason: str, source: str) -> None:
        choices.append(Choice(setting, str(value), reason, source))

    engine = request.engine or VLLM
    settle("engine", engine, _said(request.engine, "serves Hy3 on any number of devices"), "-")
    context, reason = _context(shape, request)
    settle("context", context, reason, "max_position_embeddings in its config.json")
    kv_dtype = request.kv_dtype or "bf16"
    reason = _said(
        request.kv_dtype, "FP8 without calibrated scales is suspected of drifting language"
    )
    settle("KV cache", kv_dtype, reason, "https://huggingface.co/kodelow/Hy3-NVFP4-W4A16")
    graphs, reason = _graphs(hardware, request)
    settle("CUDA graphs", "on" if graphs else "off", reason, ACCEPTANCE_SOURCE)
    settings = Settings(
        engine=engine,
        pipeline_parallel=request.pipeline_parallel,
        expert_parallel=request.expert_parallel,
        kv_dtype=kv_dtype,
        context=context,
        concurrency=request.concurrency,
        graphs=graphs,
        utilization=request.utilization,
    )
    split = choose_split(shape, hardware, settings, request)
    size, depth = split.tensor_parallel, split.draft_depth
    settings = replace(settings, tensor_parallel=size, draft_depth=depth)
    settle("drafts", depth, split.depth_reason, ACCEPTANCE_SOURCE)
    if depth:
        reason = _said(request.acceptance, "published for Hy3; given those before it")
        shares = ", ".join(f"{each:.2f}" for each in request.acceptances[:depth])
        settle("acceptance", shares, reason, ACCEPTANCE_SOURCE)
    settle("tensor parallel", size, split.size_reason, "benchmarks/results/plan_accuracy.json")
    if settings.pipeline_parallel > 1:
        settle("pipeline parallel", settings.pipeline_parallel, "as asked", "-")
    if settings.expert_parallel:
        settle("expert parallel", settings.tensor_parallel, "as asked", "-")
    return settings, choices


def _said(given: object, otherwise: str) -> str:
    return otherwise if given is None else "as asked"


def _context(shape: ModelShape, request: Request) -> tuple[int, str]:
    if request.context is not None:
        return request.context, "as asked"
    if shape.max_positions <= _USUAL_CONTEXT:
        return shape.max_positions, "as long as the model knows"
    return _USUAL_CONTEXT, f"enough for most; the model knows {shape.max_positions} positions"


def _graphs(hardware: Hardware, request: Request) -> tuple[bool, str]:
    if request.graphs is not None:
        return request.graphs, "as asked"
    ranks = (request.tensor_parallel or hardware.devices) * request.pipeline_parallel
    if hardware.device.unified and hardware.used_by(ranks).nodes > 1:
        return False, (
            "measured on this very setup: eager 21.8, graphs 15.9 tok/s; other models on the "
            "same machines gain from graphs, so measure again with your versions"
        )
    return True, "launches cost more than bytes at small batches"


def _alternatives(
    shape: ModelShape, hardware: Hardware, settings: Settings, request: Request
) -> Iterator[Alternative]:
    for depth in _ALTERNATIVE_DEPTHS:
        changed = replace(settings, draft_depth=depth)
        drafted = depth <= len(request.acceptances) and shape.mtp_layers
        if depth == 0 or (drafted and not broken_splits(shape, hardware, changed)):
            yield _alternative(f"drafts {depth}", shape, hardware, changed, request)
    for size in (1, 2, 4, 8):
        changed = replace(settings, tensor_parallel=size)
        if not broken_splits(shape, hardware, changed):
            yield _alternative(f"TP={size}", shape, hardware, changed, request)
    # The native engine decodes weights when it loads them, so their form changes nothing.
    if settings.engine != NATIVE and shape_with_fp8(shape) != shape:
        name = "attention, shared expert and dense layer in FP8"
        yield _alternative(name, shape_with_fp8(shape), hardware, settings, request)
    other = EAGER if settings.graphs else GRAPHS
    changed = replace(settings, graphs=not settings.graphs)
    yield _alternative(other, shape, hardware, changed, request)
    other_kv = "bf16" if settings.kv_dtype == "fp8" else "fp8"
    changed = replace(settings, kv_dtype=other_kv)
    yield _alternative(f"KV cache {other_kv}", shape, hardware, changed, request)


def _alternative(
    name: str, shape: ModelShape, hardware: Hardware, settings: Settings, request: Request
) -> Alternative:
    decode = predict(shape, hardware, settings, request)
    memory = footprint(shape, hardware.device, settings, request.free_bytes)
    speed = decode.stream_tok_s
    return Alternative(
        name=name,
        tok_s_stream=speed if decode.told else None,
        low=speed * decode.low if decode.told else None,
        high=speed * decode.high if decode.told else None,
        kv_tokens=memory.kv_tokens,
        fits=memory.starts(settings) and not broken_rules(shape, hardware, settings),
    )


def shape_with_fp8(shape: ModelShape) -> ModelShape:
    """The same model with its BF16 linears but router, head and MTP projection in FP8."""
    return replace(
        shape,
        classes=tuple(
            replace(each, nbytes=each.parameters, forms=("F8_E4M3",))
            if each.name in FP8_CLASSES and "BF16" in each.forms
            else each
            for each in shape.classes
        ),
    )

"""``make_plan``: the configuration for a model on some hardware, every choice with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hy3.errors import InputError
from hy3.hardware.device import Hardware
from hy3.plan.calibration import EAGER, GRAPHS, load_calibrations
from hy3.plan.engine_kernels import KernelChoice, kernel_choices
from hy3.plan.footprint import Footprint, footprint, largest_concurrency, largest_context
from hy3.plan.model_shape import ModelShape, decoded
from hy3.plan.roofline import (
    Prediction,
    Workload,
    mode_of,
    predict_decode,
    predict_prefill_s,
)
from hy3.plan.settings import NATIVE, VLLM, Settings
from hy3.plan.sharding import Constraint, broken_rules, broken_splits

# Hy3's drafts: position 1 was accepted in 62 to 76 of 100 steps, position 2 in 18 to 21; so one in
# three of those after the first.
HY3_ACCEPTANCE = (0.69, 0.29, 0.29, 0.29)
_ACCEPTANCE_SOURCE = "https://github.com/tonyd2wild/Hy3-295B-NVFP4-MTP-2x-DGX-Spark"
_ALTERNATIVE_DEPTHS = (0, 1, 2)
_USUAL_CONTEXT = 32768
_USUAL_SEQUENCE = 1024
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
    tok_s_stream: float
    low: float
    high: float
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
    prefill_s: tuple[float, float]  # of a prompt of sequence_tokens, fastest and slowest
    sequence_tokens: int
    kernels: tuple[KernelChoice, ...]
    alternatives: tuple[Alternative, ...]

    @property
    def fits(self) -> bool:
        """Whether the engine would start with a sequence of the whole context."""
        return not self.broken and self.memory.starts(self.settings)


@dataclass(frozen=True)
class Request:
    """What the user asks; None leaves the choice to the planner."""

    concurrency: int
    context: int | None = None
    engine: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    draft_depth: int | None = None
    kv_dtype: str | None = None
    graphs: bool | None = None
    utilization: float | None = None
    free_bytes: int | None = None  # measured on the machine itself
    sequence_tokens: int | None = None  # in each sequence's cache, on average, for the speed
    # Of each draft, given that those before it were accepted; None for what is known of Hy3.
    acceptance: tuple[float, ...] | None = None

    @property
    def acceptances(self) -> tuple[float, ...]:
        """Stated or known, for each draft as far as either goes."""
        return HY3_ACCEPTANCE if self.acceptance is None else self.acceptance


def make_plan(shape: ModelShape, hardware: Hardware, request: Request) -> LaunchPlan:
    """Resolve what was left open and predict memory and speed."""
    if request.engine == NATIVE:
        shape = decoded(shape)
    settings, choices = _resolve(shape, hardware, request)
    memory = footprint(shape, hardware.device, settings, request.free_bytes)
    decode = _predict(shape, hardware, settings, request)
    tokens = _sequence_tokens(settings.context, request)
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
        prefill_s=predict_prefill_s(shape, hardware, settings, tokens),
        sequence_tokens=tokens,
        kernels=tuple(kernel_choices(shape, hardware.device, settings)),
        alternatives=tuple(_alternatives(shape, hardware, settings, request)),
    )


def _sequence_tokens(context: int, request: Request) -> int:
    if request.sequence_tokens is None:
        return min(_USUAL_SEQUENCE, context)
    if request.sequence_tokens > context:
        raise InputError(
            f"{request.sequence_tokens} tokens do not fit into a context of {context}",
            hint="lower it, or raise --context",
            where="--sequence-tokens",
        )
    return request.sequence_tokens


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
    depth, reason = _depth(shape, request)
    settle("drafts", depth, reason, _ACCEPTANCE_SOURCE)
    if depth:
        reason = _said(request.acceptance, "published for Hy3; given those before it")
        shares = ", ".join(f"{each:.2f}" for each in request.acceptances[:depth])
        settle("acceptance", shares, reason, _ACCEPTANCE_SOURCE)
    graphs, reason = _graphs(hardware, request)
    settle("CUDA graphs", "on" if graphs else "off", reason, _ACCEPTANCE_SOURCE)
    settings = Settings(
        engine=engine,
        pipeline_parallel=request.pipeline_parallel,
        expert_parallel=request.expert_parallel,
        kv_dtype=kv_dtype,
        context=context,
        concurrency=request.concurrency,
        draft_depth=depth,
        graphs=graphs,
        utilization=request.utilization,
    )
    size, reason = _tensor_parallel(shape, hardware, settings, request)
    settings = replace(settings, tensor_parallel=size)
    settle("tensor parallel", size, reason, "benchmarks/results/plan_accuracy.json")
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


def _depth(shape: ModelShape, request: Request) -> tuple[int, str]:
    if request.draft_depth is not None:
        if request.draft_depth and not shape.mtp_layers:
            raise InputError(
                "the checkpoint has no MTP layer to draft with",
                hint="leave --drafts out, or take a checkpoint that kept its MTP layer",
                where="--drafts",
            )
        if request.draft_depth > len(request.acceptances):
            raise InputError(
                f"{request.draft_depth} drafts are more than acceptances are known for",
                hint=f"at most {len(request.acceptances)}, or give --acceptance for each",
                where="--drafts",
            )
        return request.draft_depth, "as asked"
    if not shape.mtp_layers:
        return 0, "the checkpoint has no MTP layer"
    if request.pipeline_parallel > 1:
        return 0, "engines do not draft across pipeline stages"
    return 1, "the layer was trained for one draft; a second is accepted in one of five steps"


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


def _tensor_parallel(
    shape: ModelShape, hardware: Hardware, settings: Settings, request: Request
) -> tuple[int, str]:
    if request.tensor_parallel is not None:
        return request.tensor_parallel, "as asked"
    fitting: list[tuple[float, int]] = []
    allowed = []
    # No more ranks than query heads, however many devices there are.
    for size in range(1, min(hardware.devices, shape.heads) + 1):
        trial = replace(settings, tensor_parallel=size)
        if broken_splits(shape, hardware, trial):
            continue
        allowed.append(size)
        if footprint(shape, hardware.device, trial, request.free_bytes).starts(trial):
            speed = _predict(shape, hardware, trial, request).stream_tok_s
            fitting.append((speed, size))
    if not allowed:
        return hardware.devices, "no size is allowed; see the broken rules"
    if not fitting:
        return max(allowed), "nothing fits; this size comes nearest"
    size = max(fitting)[1]
    reason = f"fastest of the sizes that fit ({_names(s for _, s in fitting)})"
    most = hardware.devices // settings.pipeline_parallel
    whole = broken_splits(shape, hardware, replace(settings, tensor_parallel=most))
    return size, "; ".join([reason, *(rule.sentence for rule in whole)])


def _names(sizes: Iterator[int]) -> str:
    return ", ".join(str(size) for size in sorted(sizes))


def _predict(
    shape: ModelShape, hardware: Hardware, settings: Settings, request: Request
) -> Prediction:
    calibration = load_calibrations()[hardware.device.kind, mode_of(settings)]
    workload = Workload(_sequence_tokens(settings.context, request), request.acceptances)
    used = hardware.used_by(settings.ranks)
    decode = predict_decode(shape, used, settings, workload, calibration)
    if settings.engine == NATIVE:
        decode = replace(decode, confidence="low: no measured row is of hy3's own engine")
    elif settings.pipeline_parallel > 1:
        decode = replace(decode, confidence="low: no measured row has pipeline stages")
    return decode


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
    decode = _predict(shape, hardware, settings, request)
    memory = footprint(shape, hardware.device, settings, request.free_bytes)
    speed = decode.stream_tok_s
    return Alternative(
        name=name,
        tok_s_stream=speed,
        low=speed * decode.low,
        high=speed * decode.high,
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

"""How many ranks share each layer, and how many drafts: the fastest that fits, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hy3.errors import InputError
from hy3.hardware.device import Hardware
from hy3.plan.footprint import footprint
from hy3.plan.model_shape import ModelShape
from hy3.plan.prediction import predict
from hy3.plan.request import Request
from hy3.plan.settings import Settings
from hy3.plan.sharding import broken_splits

_TRAINED_DEPTH = 1


@dataclass(frozen=True)
class Split:
    """Tensor-parallel size and draft depth, each with its reason."""

    tensor_parallel: int
    size_reason: str
    draft_depth: int
    depth_reason: str


@dataclass(frozen=True)
class _Trial:
    """A launch that fits; its speed is None where none can be told."""

    size: int
    depth: int
    tok_s: float | None


def choose_split(
    shape: ModelShape, hardware: Hardware, settings: Settings, request: Request
) -> Split:
    """Of the sizes and depths that are allowed and fit, those predicted to be fastest together.

    Where none can be told of the fewest ranks that fit, more of them only add to what a step costs
    anyway: those are taken, and the one draft that MTP layers are trained for.
    """
    depths, depth_reason = _depths(shape, request)
    sizes = _sizes(shape, hardware, settings, request)
    trials = _fitting(shape, hardware, settings, request, sizes, depths)
    if trials and trials[0].tok_s is not None:
        best = max(trials, key=lambda trial: (trial.tok_s or 0.0, trial.size))
        same_size = [trial for trial in trials if trial.size == best.size]
        depth_reason = depth_reason or _fastest_depth(same_size, request)
        size_reason = f"fastest of the sizes that fit ({_names(trials)})"
    elif trials:
        best = min(trials, key=lambda trial: (trial.size, abs(trial.depth - _TRAINED_DEPTH)))
        depth_reason = depth_reason or (
            "no speed can be told; MTP layers are trained for one draft"
        )
        size_reason = "the fewest ranks that fit: no speed can be told"
    else:
        best = _Trial(max(sizes, default=hardware.devices), min(depths), None)
        why = "nothing fits; this comes nearest" if sizes else "no size is allowed; see the rules"
        depth_reason, size_reason = depth_reason or why, why
    if request.tensor_parallel is not None:
        size_reason = "as asked"
    elif trials:
        size_reason = "; ".join([size_reason, *_rules_of_all(shape, hardware, settings)])
    return Split(best.size, size_reason, best.depth, depth_reason)


def _depths(shape: ModelShape, request: Request) -> tuple[Sequence[int], str]:
    """Depths to choose from; the reason where there is but one."""
    if request.draft_depth is not None:
        _check_depth(shape, request, request.draft_depth)
        return (request.draft_depth,), "as asked"
    if not shape.mtp_layers:
        return (0,), "the checkpoint has no MTP layer"
    if request.pipeline_parallel > 1:
        return (0,), "engines do not draft across pipeline stages"
    stated = _TRAINED_DEPTH if request.acceptance is None else len(request.acceptance)
    return range(stated + 1), ""


def _check_depth(shape: ModelShape, request: Request, depth: int) -> None:
    if depth and not shape.mtp_layers:
        raise InputError(
            "the checkpoint has no MTP layer to draft with",
            hint="leave --drafts out, or take a checkpoint that kept its MTP layer",
            where="--drafts",
        )
    if depth > len(request.acceptances):
        raise InputError(
            f"{depth} drafts are more than acceptances are known for",
            hint=f"at most {len(request.acceptances)}, or give --acceptance for each",
            where="--drafts",
        )


def _sizes(
    shape: ModelShape, hardware: Hardware, settings: Settings, request: Request
) -> Sequence[int]:
    if request.tensor_parallel is not None:
        return (request.tensor_parallel,)
    # No more ranks than query heads, however many devices there are.
    return [
        size
        for size in range(1, min(hardware.devices, shape.heads) + 1)
        if not broken_splits(shape, hardware, replace(settings, tensor_parallel=size))
    ]


def _fitting(
    shape: ModelShape,
    hardware: Hardware,
    settings: Settings,
    request: Request,
    sizes: Sequence[int],
    depths: Sequence[int],
) -> list[_Trial]:
    """Of the fewest ranks first."""
    found = []
    for size in sizes:
        for depth in depths:
            trial = replace(settings, tensor_parallel=size, draft_depth=depth)
            if footprint(shape, hardware.device, trial, request.free_bytes).starts(trial):
                decode = predict(shape, hardware, trial, request)
                found.append(_Trial(size, depth, decode.stream_tok_s if decode.told else None))
    return found


def _fastest_depth(trials: Sequence[_Trial], request: Request) -> str:
    speeds = ", ".join(f"{each.depth}: {each.tok_s:.1f}" for each in trials if each.tok_s)
    reason = f"fastest as predicted, tok/s a stream with {speeds}"
    if request.acceptance is None:
        reason += "; a second draft lost beside one wherever both were measured"
    return reason


def _rules_of_all(shape: ModelShape, hardware: Hardware, settings: Settings) -> list[str]:
    """What forbids to use every device."""
    most = hardware.devices // settings.pipeline_parallel
    broken = broken_splits(shape, hardware, replace(settings, tensor_parallel=most))
    return [rule.sentence for rule in broken]


def _names(trials: Sequence[_Trial]) -> str:
    return ", ".join(map(str, sorted({trial.size for trial in trials})))

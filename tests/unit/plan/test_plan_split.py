"""Ranks and drafts are chosen by the numbers that the plan shows, and by those it may believe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hy3.hardware.device import parse_hardware
from hy3.plan.calibration import load_calibrations
from hy3.plan.model_shape import ModelShape
from hy3.plan.planner import LaunchPlan, make_plan
from hy3.plan.request import Request
from hy3.plan.roofline import InFlight, Workload, in_flight, predict_decode
from hy3.plan.settings import Settings
from support.real_models import HY3
from support.shapes import shape_in

UNIFIED = load_calibrations()["unified", "graphs"]


@pytest.fixture(scope="module")
def hy3() -> ModelShape:
    return shape_in("Hy3", HY3, "experts-nvfp4")


def plan_of(shape: ModelShape, hardware: str, **asked: object) -> LaunchPlan:
    return make_plan(shape, parse_hardware(hardware), Request(**{"concurrency": 1} | asked))


def reason(plan: LaunchPlan, setting: str) -> str:
    return next(each.reason for each in plan.choices if each.setting == setting)


def table(plan: LaunchPlan) -> dict[str, float]:
    """What the plan shows of other drafts and sizes, as far as they fit and are told."""
    return {
        each.name: each.tok_s_stream
        for each in plan.alternatives
        if each.fits and each.tok_s_stream is not None
    }


@pytest.mark.parametrize("hardware", ["2xgb10", "4xgb10", "4xrtx-pro-6000", "8xh200", "2xb300"])
@pytest.mark.parametrize("concurrency", [1, 6, 32])
def test_nothing_in_its_own_table_is_faster(
    hy3: ModelShape, hardware: str, concurrency: int
) -> None:
    plan = plan_of(hy3, hardware, concurrency=concurrency)
    shown = table(plan)
    others = [shown[name] for name in shown if name.startswith("TP=")]
    others += [shown[name] for name in ("drafts 0", "drafts 1")]
    assert plan.decode.stream_tok_s == pytest.approx(max(others))
    if shown["drafts 2"] > plan.decode.stream_tok_s:
        assert "a second draft lost beside one" in reason(plan, "drafts")


@pytest.mark.parametrize(
    ("acceptance", "depth"), [((0.05,), 0), ((0.7,), 1), ((0.9, 0.9), 2), ((0.9, 0.05), 1)]
)
def test_drafts_follow_the_stated_acceptance(
    hy3: ModelShape, acceptance: tuple[float, ...], depth: int
) -> None:
    plan = plan_of(hy3, "2xgb10", acceptance=acceptance)
    speeds = {name: speed for name, speed in table(plan).items() if name.startswith("drafts")}
    assert plan.settings.draft_depth == depth
    assert max(speeds, key=lambda name: speeds[name]) == f"drafts {depth}"
    for name, speed in speeds.items():
        assert f"{name.removeprefix('drafts ')}: {speed:.1f}" in reason(plan, "drafts")


def test_drafts_that_do_not_fit_are_left_out(hy3: ModelShape) -> None:
    """A share that holds the trunk and one sequence has no room for the MTP layer beside them."""
    bare = plan_of(hy3, "b300", context=4096, draft_depth=0)
    spare = bare.memory.kv_bytes - 4096 * bare.memory.kv_bytes_per_token
    share = (bare.memory.budget_bytes - spare + 2) / parse_hardware("b300").device.visible_bytes
    tight = plan_of(hy3, "b300", context=4096, utilization=share)
    assert tight.fits and tight.settings.draft_depth == 0
    asked = plan_of(hy3, "b300", context=4096, utilization=share, draft_depth=1)
    assert not asked.fits
    nothing = plan_of(hy3, "b300", free_bytes=2**30)
    assert not nothing.fits and "nothing fits" in reason(nothing, "tensor parallel")


def shrunk(shape: ModelShape, layers: int, parts: int) -> ModelShape:
    """Fewer layers, and weights of a share of the bytes."""
    classes = (
        replace(each, nbytes=each.nbytes // parts, parameters=each.parameters // parts)
        for each in shape.classes
    )
    return replace(shape, layers=layers, classes=tuple(classes))


def test_hy3s_own_engine_and_small_models_get_no_number(hy3: ModelShape) -> None:
    """Four ranks cost the small one so much in all-reduces that these could be told; one cannot."""
    small, tenth = shrunk(hy3, 2, 10**4), shrunk(hy3, 20, 10)
    for shape, hardware, engine in ((small, "4xgb10", "vllm"), (tenth, "b300", "native")):
        plan = plan_of(shape, hardware, engine=engine)
        assert plan.fits and not plan.decode.told and plan.prefill_s is None
        assert "drafts 0" not in table(plan) and "drafts 1" not in table(plan)
        assert (plan.settings.tensor_parallel, plan.settings.draft_depth) == (1, 1)
        assert "no speed can be told" in reason(plan, "drafts")
        assert "no speed can be told" in reason(plan, "tensor parallel")


def test_what_scatter_may_hide() -> None:
    """Row 125: 59.5 tok/s, so 16.8 ms; a quarter of them lies within the interval of 1.25."""
    assert UNIFIED.shortest_step_s == pytest.approx(1 / 59.5, rel=1e-3)
    assert UNIFIED.lost_in_scatter_s == pytest.approx(0.25 / 59.5, rel=1e-2)
    # Sixteen streams with three drafts each.
    assert UNIFIED.most_step_tokens == 16 * 4


def test_doubts_are_named(hy3: ModelShape) -> None:
    usual = plan_of(hy3, "2xgb10", concurrency=16)
    assert usual.decode.confidence == "8 rows of 6 sources"
    crowded = plan_of(hy3, "2xgb10", concurrency=33, draft_depth=1)
    assert "low: 66 tokens in a step are more than the 64" in crowded.decode.confidence
    # 15 ms, between what scatter hides and what was measured.
    tenth = shrunk(hy3, 20, 10)
    short = plan_of(tenth, "gb10", draft_depth=0, context=4096)
    assert UNIFIED.lost_in_scatter_s < short.decode.model_s < UNIFIED.shortest_step_s
    assert short.decode.told and "is shorter than any measured, 16.8 ms" in short.decode.confidence


@pytest.mark.parametrize(
    ("stages", "streams", "dealt"),
    [
        (1, 6, InFlight(1, 6)),
        (3, 1, InFlight(1, 1)),
        (3, 2, InFlight(2, 1)),
        (3, 6, InFlight(3, 2)),
        (3, 7, InFlight(3, 3)),
    ],
)
def test_streams_are_dealt_out_to_the_stages(stages: int, streams: int, dealt: InFlight) -> None:
    settings = Settings("vllm", pipeline_parallel=stages, concurrency=streams)
    assert in_flight(settings) == dealt


def test_batches_overlap_in_the_stages(hy3: ModelShape) -> None:
    """Six streams in three batches: each passes as two streams would, and all six go on."""
    hardware = parse_hardware("3xgb10")

    def decode(stages: int, streams: int):
        settings = Settings("vllm", pipeline_parallel=stages, concurrency=streams)
        return predict_decode(hy3, hardware, settings, Workload(1000), UNIFIED)

    dealt, two, six = decode(3, 6), decode(1, 2), decode(1, 6)
    handed_over_s = 2 * hardware.device.collective_s
    assert dealt.step_s == pytest.approx(two.step_s + handed_over_s)
    assert dealt.stream_tok_s == pytest.approx(1 / dealt.step_s)
    # Those that arrive together stay in one batch, and two of three stages wait.
    together = 1 / (six.step_s + handed_over_s)
    assert dealt.stream_tok_s * dealt.low == pytest.approx(together * UNIFIED.low)
    assert decode(3, 1).low == UNIFIED.low
    plan = plan_of(hy3, "3xgb10", pipeline_parallel=3, tensor_parallel=1, concurrency=6)
    assert plan.in_flight == InFlight(3, 2)
    assert plan.decode.confidence.startswith("low: no measured row has pipeline stages")

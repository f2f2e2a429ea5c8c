"""Speed of a launch: the terms against hand-made sums, and the recorded accuracy."""

from __future__ import annotations

import json
import random
import tomllib
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from hy3.hardware.device import parse_hardware
from hy3.plan.calibration import Calibration, load_calibrations
from hy3.plan.model_shape import ModelShape
from hy3.plan.planner import make_plan, shape_with_fp8
from hy3.plan.request import Request
from hy3.plan.roofline import (
    Workload,
    distinct_experts,
    fullest_share,
    predict_decode,
    step_bytes,
    tokens_per_step,
)
from hy3.plan.settings import Settings
from support.real_models import HY3, HY_MT2
from support.shapes import shape_in, shape_of_folder
from support.sparse import write_sparse

ROOT = Path(__file__).resolve().parents[3]
PLAIN = Calibration("unified", "eager", 0.85, 0.0, 0.8, 1.25, 8, 6, "test", 0.002, 0.02, 64)


@pytest.fixture(scope="module")
def hy3(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    return shape_of_folder(write_sparse(tmp_path_factory.mktemp("hy3") / "nvfp4", HY3, packed=True))


def test_distinct_experts() -> None:
    assert distinct_experts(192, 8, 1) == pytest.approx(8)
    assert distinct_experts(192, 8, 2) == pytest.approx(16 - 64 / 192)
    # Six sequences with one draft: 12 tokens touch about 77 of 192 experts.
    assert distinct_experts(192, 8, 12) == pytest.approx(76.8, abs=0.2)
    assert distinct_experts(0, 0, 5) == 0.0


def test_tokens_of_a_step() -> None:
    assert tokens_per_step(Settings("vllm"), ()) == 1.0
    assert tokens_per_step(Settings("vllm", draft_depth=2), (0.7, 0.3)) == pytest.approx(1.91)


def test_bytes_of_one_token(hy3: ModelShape) -> None:
    """6.7 GB of experts and 16.5 GB of everything else: 71 % is not experts."""
    read = step_bytes(hy3, Settings("vllm"), Workload(0))
    experts = 79 * 8 * 3 * 4096 * 1536 * 9 / 16
    assert read["routed_expert"] == pytest.approx(experts, rel=1e-4)
    others = sum(read.values()) - read["routed_expert"]
    linears = 2 * (80 * 75_497_472 + 79 * 18_874_368 + 163_577_856 + 494_927_872)
    assert others == pytest.approx(linears, rel=0.01)
    assert others / sum(read.values()) == pytest.approx(0.71, abs=0.01)


def test_cache_is_read_for_each_sequence(hy3: ModelShape) -> None:
    settings = Settings("vllm", tensor_parallel=2, kv_dtype="fp8", concurrency=3)
    assert step_bytes(hy3, settings, Workload(1000))["kv cache"] == 3 * 1000 * 81_920


def test_terms_add_up(hy3: ModelShape) -> None:
    """Two Sparks without drafts: bytes over bandwidth, 161 all-reduces of 50 us and more."""
    settings = Settings("vllm", tensor_parallel=2, graphs=False)
    hardware = parse_hardware("2xgb10")
    found = predict_decode(hy3, hardware, settings, Workload(0), PLAIN)
    terms = {term.name: term.seconds for term in found.terms}
    read = sum(step_bytes(hy3, settings, Workload(0)).values())
    assert found.step_s == pytest.approx(sum(terms.values()))
    assert terms["collectives"] == pytest.approx(161 * (50e-6 + 2 * 8192 / 25e9))
    assert terms["collectives"] + terms["step floor"] == pytest.approx(
        found.step_s - read / (0.85 * 273e9)
    )
    assert found.stream_tok_s == pytest.approx(1 / found.step_s)
    assert found.stream_tok_s == pytest.approx(17.1, abs=0.5)


def test_a_longer_ring_pays_for_every_hop(hy3: ModelShape) -> None:
    def collectives(text: str, size: int) -> float:
        settings = Settings("vllm", tensor_parallel=size)
        found = predict_decode(hy3, parse_hardware(text), settings, Workload(0), PLAIN)
        return next(term.seconds for term in found.terms if term.name == "collectives")

    assert collectives("4xgb10", 4) > 2.9 * collectives("2xgb10", 2)
    assert collectives("4xh200", 4) == pytest.approx(collectives("2xh200", 2))


def test_machines_that_are_not_used_cost_no_hops(hy3: ModelShape) -> None:
    request = Request(context=8192, concurrency=1, tensor_parallel=2)
    two, four = (make_plan(hy3, parse_hardware(text), request) for text in ("2xgb10", "4xgb10"))
    assert two.decode == four.decode
    assert {each.name: each for each in two.alternatives}["TP=2"] in four.alternatives


def test_stages_read_all_that_one_does_and_hand_over(hy3: ModelShape) -> None:
    plain, staged = Settings("vllm"), Settings("vllm", pipeline_parallel=3)
    assert step_bytes(hy3, staged, Workload(100)) == step_bytes(hy3, plain, Workload(100))
    hardware = parse_hardware("3xgb10")
    found = predict_decode(hy3, hardware, staged, Workload(0), PLAIN)
    alone = predict_decode(hy3, hardware, plain, Workload(0), PLAIN)
    assert found.step_s - alone.step_s == pytest.approx(2 * 50e-6)
    # A stage within a machine reduces there; two machines a stage need a ring of two.
    stages = Settings("vllm", tensor_parallel=2, pipeline_parallel=2)
    rings = [
        next(
            t
            for t in predict_decode(hy3, on, each, Workload(0), PLAIN).terms
            if t.name == "collectives"
        )
        for on, each in (
            (parse_hardware("4xgb10"), stages),
            (parse_hardware("2xgb10"), replace(stages, pipeline_parallel=1)),
        )
    ]
    assert rings[0] == rings[1]


def test_stated_acceptance_is_what_the_speed_is_made_of(hy3: ModelShape) -> None:
    request = Request(context=8192, concurrency=1, draft_depth=2, acceptance=(0.5, 0.5))
    plan = make_plan(hy3, parse_hardware("2xgb10"), request)
    assert plan.decode.tokens_per_step == pytest.approx(1 + 0.5 + 0.25)
    assert ("acceptance", "0.50, 0.50", "as asked") in [
        (each.setting, each.value, each.reason) for each in plan.choices
    ]


def test_the_seeds_speed_lies_in_the_interval(hy3: ModelShape) -> None:
    """Two Sparks, one draft: 21.8 tok/s were measured; the row is one of those fitted on."""
    request = Request(context=131072, concurrency=1, kv_dtype="fp8")
    plan = make_plan(hy3, parse_hardware("2xgb10"), request)
    assert plan.settings.tensor_parallel == 2 and plan.settings.draft_depth == 1
    assert not plan.settings.graphs and plan.fits
    speed = plan.decode.stream_tok_s
    assert speed * plan.decode.low <= 21.8 <= speed * plan.decode.high


def test_fp8_attention_is_the_lever(hy3: ModelShape) -> None:
    plan = make_plan(hy3, parse_hardware("2xgb10"), Request(context=32768, concurrency=1))
    speeds = {each.name: each.tok_s_stream for each in plan.alternatives}
    gain = speeds["attention, shared expert and dense layer in FP8"] / plan.decode.stream_tok_s
    assert 1.15 < gain < 1.4
    assert speeds["drafts 0"] < speeds["drafts 1"]
    smaller = shape_with_fp8(hy3)
    assert hy3.nbytes - smaller.nbytes == 81 * 75_497_472 + 80 * 18_874_368 + 163_577_856


def test_drafts_need_an_mtp_layer(hy3: ModelShape) -> None:
    from hy3.errors import InputError

    bare = replace(hy3, mtp_layers=0, classes=tuple(c for c in hy3.classes if not c.mtp))
    with pytest.raises(InputError, match="no MTP layer"):
        make_plan(
            bare, parse_hardware("2xgb10"), Request(context=1024, concurrency=1, draft_depth=1)
        )
    plan = make_plan(bare, parse_hardware("2xgb10"), Request(context=1024, concurrency=1))
    assert plan.settings.draft_depth == 0


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scripts can be imported."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.mark.usefixtures("benchmarks")
def test_rows_take_what_they_state_and_no_more() -> None:
    from plan_rows import read_rows

    rows = {row.identity: row for row in read_rows()[0]}
    # One source, two prompts: no pair. EP is said in the notes.
    assert (rows["13"].scenario, rows["19"].scenario) == ("s1", "s3")
    assert rows["13"].pair_key != rows["19"].pair_key
    assert rows["13"].settings.expert_parallel and not rows["42"].settings.expert_parallel
    # Stated by itself; by another row of its source; by nobody.
    assert rows["44"].workload.acceptance == (0.576,)
    assert rows["45"].workload.acceptance[0] == pytest.approx((0.576 + 0.577) / 2, abs=1e-3)
    assert rows["65"].workload.acceptance == (0.65, 0.65, 0.65)
    assert rows["44"].gained_range == (1.576, 1.576)
    assert rows["78"].gained_range == (1.467, 1.834)


@pytest.mark.usefixtures("benchmarks")
@pytest.mark.parametrize(("name", "raw"), [("Hy3", HY3), ("Hy-MT2-30B-A3B", HY_MT2)])
def test_rows_have_the_dimensions_of_the_models(name: str, raw: dict[str, Any]) -> None:
    from plan_rows import DATA, build_shape

    entry = tomllib.loads((DATA / "architectures.toml").read_text(encoding="utf-8"))[name]
    rows, model = build_shape(name, entry, 2.0, 2.0), shape_in(name, raw, None)
    for field in fields(ModelShape):
        if field.name not in ("classes", "max_positions"):
            assert getattr(rows, field.name) == getattr(model, field.name), field.name
    counted = {(each.name, each.mtp): each.parameters for each in model.classes}
    for each in rows.classes:
        assert each.parameters == counted[each.name, each.mtp]


@pytest.mark.usefixtures("benchmarks")
def test_an_unknown_acceptance_is_told_apart_only_at_both_ends() -> None:
    from plan_accuracy import Judged, compare_pairs
    from plan_rows import read_rows

    rows = {row.identity: row for row in read_rows()[0]}
    plain, drafting = rows["72"], rows["78"]  # predicted 1.65 times as many tokens a step

    def answer(speed: float) -> str:
        judged = [Judged(plain, 20.0, 0, 0), Judged(drafting, speed, 0, 0)]
        return compare_pairs(judged)[0]["answer"]

    assert answer(15.0) == "right"  # at most 15 x 1.834 / 1.65 = 16.7 against 20
    assert answer(18.5) == "cannot tell"  # up to 20.6
    assert answer(24.0) == "wrong"  # 21.3 even at the least


@pytest.mark.usefixtures("benchmarks")
def test_constants_are_what_the_rows_give() -> None:
    """The table is written by the benchmark; an edit by hand shows here."""
    from plan_accuracy import SPEED, prepare, speed_toml, written_draft_floor
    from plan_rows import read_rows

    rows = [prepare(row) for row in read_rows()[0]]
    assert SPEED.read_text(encoding="utf-8") == speed_toml(rows, written_draft_floor())


def test_no_constant_rests_on_one_row() -> None:
    assert len(load_calibrations()) == 6
    for (kind, mode), constants in load_calibrations().items():
        assert constants.rows == 0 or constants.rows > 5, (kind, mode)
        assert constants.rows or constants.confidence.startswith("low"), (kind, mode)


def test_the_recorded_accuracy_holds() -> None:
    recorded = json.loads((ROOT / "benchmarks/results/plan_accuracy.json").read_text())
    summary = recorded["summary"]
    assert summary["inside_share"] >= 0.80 and summary["median_half_width"] <= 0.30
    for group in ("gb10", "own_h200"):
        errors = summary["point_error"][group]
        assert errors["median"] <= 0.20 and errors["p90"] <= 0.45
    assert summary["pairs_cannot_tell_share"] <= 0.40
    assert summary["pairs_wrong_share"] <= 0.15


def test_whole_experts_wait_for_the_fullest_rank() -> None:
    assert fullest_share(8, 1) == pytest.approx(8)
    for ranks in (2, 8):
        deals = [Counter(random.Random(i).choices(range(ranks), k=8)) for i in range(4000)]
        dealt = sum(max(deal.values()) for deal in deals) / len(deals)
        assert fullest_share(8, ranks) == pytest.approx(dealt, rel=0.08)


def test_expert_parallelism_reads_more_for_few_tokens(hy3: ModelShape) -> None:
    split = Settings("vllm", tensor_parallel=8)
    whole = replace(split, expert_parallel=True)
    few = [step_bytes(hy3, each, Workload(0))["routed_expert"] for each in (split, whole)]
    assert few[1] / few[0] == pytest.approx(fullest_share(8, 8), rel=1e-6)
    many = [replace(each, concurrency=4096) for each in (split, whole)]
    read = [step_bytes(hy3, each, Workload(0))["routed_expert"] for each in many]
    assert 1 < read[1] / read[0] < 1.4

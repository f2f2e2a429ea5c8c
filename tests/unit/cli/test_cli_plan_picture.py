"""The picture of a plan's memory: every rank, term, size and limit, to scale."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from hy3.cli.plan_picture import draw_memory
from hy3.hardware.device import GIB, parse_hardware
from hy3.plan.planner import LaunchPlan, make_plan
from hy3.plan.request import Request
from support.real_models import HY3
from support.shapes import shape_in

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def plan() -> LaunchPlan:
    shape = shape_in("Hy3-NVFP4", HY3, "experts-nvfp4")
    return make_plan(shape, parse_hardware("2xgb10"), Request(context=131072, concurrency=6))


def texts(svg: bytes) -> list[str]:
    return ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def bars(svg: bytes) -> list[tuple[float, float, float]]:
    """Left, top and height of every part of a bar: they have white edges (and black no fill)."""
    found = []
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        place = "clip-path" in path.attrib and "stroke: #ffffff" in path.get("style", "")
        numbers = [float(text) for text in re.findall(r"-?\d+\.?\d*", path.get("d", ""))]
        if place and len(numbers) == 8:
            found.append((min(numbers[::2]), min(numbers[1::2]), max(numbers[1::2])))
    return [(left, top, bottom - top) for left, top, bottom in found]


def test_every_term_has_a_label_with_its_size(plan: LaunchPlan) -> None:
    shown = texts(draw_memory(plan))
    routed = next(term for term in plan.memory.weights if term.name == "routed_expert")
    assert f"routed expert, {routed.nbytes / GIB:.1f}" in shown
    assert f"KV cache ({plan.memory.kv_tokens} tokens), {plan.memory.kv_bytes / GIB:.1f}" in shown
    assert "memory of the device, 121.7" in shown
    assert f"the engine's share (0.90), {plan.memory.budget_bytes / GIB:.1f}" in shown
    assert {"rank 0", "rank 1", "GiB"} <= set(shown)
    assert not {"rank 2"} & set(shown)


def test_bars_are_to_scale_and_fill_the_device(plan: LaunchPlan) -> None:
    drawn = bars(draw_memory(plan))
    columns: dict[float, list[float]] = {}
    for left, _, height in drawn:
        columns.setdefault(round(left), []).append(height)
    assert len(columns) == 2
    first, second = columns.values()
    assert first == pytest.approx(second)
    routed = next(term for term in plan.memory.weights if term.name == "routed_expert")
    whole = plan.hardware.device.visible_bytes
    assert max(first) / sum(first) == pytest.approx(routed.nbytes / whole, abs=1e-3)


def test_what_does_not_fit_has_no_cache_and_stands_above_the_line(plan: LaunchPlan) -> None:
    shown = texts(draw_memory(replace(plan, memory=replace(plan.memory, budget_bytes=0))))
    assert not [text for text in shown if text.startswith("KV cache")]

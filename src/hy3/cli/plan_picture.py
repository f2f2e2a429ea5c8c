"""The memory of every rank as a picture: weights, what else is held, the cache, the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hy3.hardware.device import GIB
from hy3.plan.footprint import Term
from hy3.plan.planner import LaunchPlan
from hy3.report.plots import Limit, Part, stacked_bars

# Parts below this share of a device's memory are drawn as one.
_SMALL = 0.01


def draw_memory(plan: LaunchPlan) -> bytes:
    """SVG with a bar for each rank, equal ones: tensor parallelism gives each the same."""
    memory, total = plan.memory, plan.hardware.device.visible_bytes
    parts = [*_merged(memory.weights, total, "other weights")]
    parts += _merged(memory.others, total, "other")
    used = sum(part.size for part in parts) * GIB
    cache = max(memory.kv_bytes, 0)
    if cache:
        parts.append(Part(f"KV cache ({memory.kv_tokens} tokens)", cache / GIB))
    if (rest := total - used - cache) > 0:
        parts.append(Part("left over", rest / GIB, empty=True))
    limits = (
        Limit("memory of the device", total / GIB),
        Limit(f"the engine's share ({memory.utilization:.2f})", memory.budget_bytes / GIB),
    )
    names = [f"rank {number}" for number in range(plan.settings.ranks)]
    return stacked_bars(names, parts, limits, "GiB")


def _merged(terms: Iterable[Term], total: int, name: str) -> Iterator[Part]:
    """The terms in their order, those too small to be seen together as the last."""
    small = 0
    for term in terms:
        if term.nbytes < _SMALL * total:
            small += term.nbytes
        else:
            yield Part(term.name.replace("_", " "), term.nbytes / GIB)
    if small:
        yield Part(name, small / GIB)

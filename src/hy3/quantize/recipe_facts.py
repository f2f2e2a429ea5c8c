"""What the card says of its recipe: the rules, what it costs, and the cards that it fits."""

from __future__ import annotations

from collections.abc import Iterator

from hy3.quantize.plan import Plan
from hy3.quantize.sizes import (
    CARDS_GIB,
    KV_TOKENS,
    MEMORY_SHARE,
    WORKSPACE_BYTES,
    RecipeSize,
    fits_card,
    kv_bytes,
    needed_bytes,
    size_of,
)
from hy3.report.markdown import markdown_table
from hy3.units import format_bytes

# Models beyond this are not for one such card in any form.
_ONE_CARD_BYTES = 100 * 10**9


def recipe_sections(plan: Plan) -> Iterator[str]:
    """Paragraphs and tables in Markdown."""
    if plan.recipe.description:
        yield plan.recipe.description
    yield "The first rule that applies decides; class `*` is every class."
    rows = [(rule.by, f"`{rule.pattern}`", rule.format) for rule in plan.recipe.rules]
    yield markdown_table(("by", "pattern", "format"), rows)
    size = size_of(plan.config, plan.assignment)
    yield (
        f"A token reads {format_bytes(size.token_bytes)} of weights at batch 1 without drafts, "
        f"{format_bytes(size.token_bytes_by_class['routed_expert'])} of it routed experts."
    )
    if plan.source_bytes <= _ONE_CARD_BYTES:
        yield f"Weights, {_allowance(plan)} take {format_bytes(_needed(plan, size))}. " + " ".join(
            _fit(plan, size, card) for card in CARDS_GIB
        )


def _needed(plan: Plan, size: RecipeSize) -> int:
    return needed_bytes(plan.config, size)


def _allowance(plan: Plan) -> str:
    cache = format_bytes(kv_bytes(plan.config, KV_TOKENS))
    workspace = format_bytes(WORKSPACE_BYTES)
    return f"a BF16 KV cache of {KV_TOKENS} tokens ({cache}) and {workspace} of workspace"


def _fit(plan: Plan, size: RecipeSize, card_gib: int) -> str:
    room = format_bytes(round(card_gib * 2**30 * MEMORY_SHARE))
    verdict = "fits" if fits_card(plan.config, size, card_gib) else "does not fit"
    return f"That {verdict} a {card_gib} GB card ({room} at {MEMORY_SHARE:.0%} of its memory)."

"""Writes the tables of recipes in docs/quantize.md from the recipes and the models' shapes.

python tools/recipes_table.py            # rewrites the part of the page between its marks
python tools/recipes_table.py --check    # exits 1 if the page says anything else
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from hy3.checkpoint.model_config import Hy3Config, parse_config  # noqa: E402
from hy3.quantize.assignment import assign  # noqa: E402
from hy3.quantize.recipe import LM_HEADS, load_recipe, recipe_names  # noqa: E402
from hy3.quantize.sizes import CARDS_GIB, RecipeSize, fits_card, size_of  # noqa: E402
from hy3.report.markdown import markdown_table  # noqa: E402
from hy3.units import format_bytes  # noqa: E402
from marked import rewrite  # noqa: E402
from support.real_models import HY3, HY_MT2  # noqa: E402 - the published configurations

PAGE = ROOT / "docs" / "quantize.md"


def sizes(config: Hy3Config) -> Iterator[tuple[str, str, RecipeSize]]:
    """Recipe, form of lm_head, and what it comes to; the largest first."""
    rows = []
    for name in recipe_names():
        for head in LM_HEADS:
            recipe = load_recipe(name).with_options(None, head)
            size = size_of(config, assign(config, recipe, "same", "compressed-tensors"))
            rows.append((name, head, size))
    yield from sorted(rows, key=lambda row: (-row[2].token_bytes, row[0]))


def tables() -> str:
    """What stands between the marks."""
    large, small = parse_config(HY3), parse_config(HY_MT2)
    second = {(name, head): size for name, head, size in sizes(small)}
    rows = []
    for name, head, size in sizes(large):
        other = second[name, head]
        fits = ["yes" if fits_card(small, other, card) else "no" for card in CARDS_GIB]
        columns = (size.file_bytes, size.token_bytes, other.file_bytes, other.token_bytes)
        rows.append((f"`{name}`", head, *map(format_bytes, columns), *fits))
    header = ("recipe", "lm_head", "Hy3", "a token", "Hy-MT2-30B", "a token")
    cards = tuple(f"on {card} GB" for card in CARDS_GIB)
    described = [(f"`{name}`", load_recipe(name).description) for name in recipe_names()]
    purposes = markdown_table(("recipe", "what it is for"), described)
    return f"{purposes}\n\n{markdown_table(header + cards, rows)}"


def main() -> int:
    """Rewrite the page, or say whether it is right."""
    return rewrite(PAGE, {"recipes": tables()})


if __name__ == "__main__":
    sys.exit(main())

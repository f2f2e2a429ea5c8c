"""Shapes for the planner, of folders and of the published models in a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hy3.checkpoint.index import open_checkpoint
from hy3.checkpoint.model_config import load_config, parse_config
from hy3.checkpoint.names import expected_tensors
from hy3.plan.model_shape import ModelShape, shape_of, shape_of_forms
from hy3.quantize.assignment import assign
from hy3.quantize.recipe import load_recipe


def shape_of_folder(folder: Path) -> ModelShape:
    """Of the headers of a checkpoint."""
    return shape_of(folder.name, open_checkpoint(folder), load_config(folder))


def shape_in(name: str, raw_config: Mapping[str, Any], recipe: str | None) -> ModelShape:
    """Of what a recipe makes of a model; None leaves it in BF16."""
    config = parse_config(dict(raw_config))
    forms: Mapping[str, str] = dict.fromkeys(expected_tensors(config), "bf16")
    if recipe is not None:
        forms = assign(config, load_recipe(recipe), "same", "compressed-tensors").forms
    return shape_of_forms(name, config, forms)

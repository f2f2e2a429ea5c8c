"""The front matter of the card, by which a hub files a model: known facts only.

Licence, languages and task are the source's own, from the front matter of its card; what the
weights are, and of which model if it came from a hub, is known from the plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from hy3.checkpoint.forms import FORMAT_NAMES
from hy3.quantize.plan import Plan

_SOURCE_CARD = "README.md"
_KEPT = ("license", "license_name", "license_link", "language", "pipeline_tag", "library_name")
_FENCE = "---\n"


def front_matter(plan: Plan) -> str:
    """The block with its fences and an empty line."""
    known = _source_facts(plan.checkpoint.folder / _SOURCE_CARD)
    facts: dict[str, Any] = {key: known[key] for key in _KEPT if key in known}
    if plan.origin:
        facts |= {"base_model": plan.origin.repository, "base_model_relation": "quantized"}
    formats = {FORMAT_NAMES[form].partition(" ")[0].lower() for form in plan.assignment.quantized}
    facts["tags"] = [plan.raw_config["model_type"], *sorted(formats), plan.parameters.format]
    block: str = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)
    return f"{_FENCE}{block}{_FENCE}\n"


def _source_facts(path: Path) -> dict[str, Any]:
    """What the source's card says of itself; a card that is missing or unreadable says nothing."""
    try:
        text = path.read_text(encoding="utf-8")
        if not text.startswith(_FENCE):
            return {}
        facts = yaml.safe_load(text[len(_FENCE) :].partition(f"\n{_FENCE}")[0])
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return facts if isinstance(facts, dict) else {}

"""The model card of a quantized checkpoint: what became what, how exact, and from which bytes."""

from __future__ import annotations

from hy3.checkpoint.file_hash import FileHash
from hy3.checkpoint.forms import FORMAT_NAMES, FP8_BLOCK, NVFP4_FORMS
from hy3.quantize.front_matter import front_matter
from hy3.quantize.pictures import ERROR_PICTURE, SCALE_PICTURE
from hy3.quantize.plan import Plan
from hy3.quantize.recipe_facts import recipe_sections
from hy3.quantize.stats import StatsByKey
from hy3.quantize.summary import summary_table
from hy3.report.markdown import markdown_table
from hy3.units import format_bytes

CARD_NAME = "README.md"

# picture -> what it shows, and how to read it
_CAPTIONS = {
    ERROR_PICTURE: (
        "Error by layer and class",
        "In the measure of the table; dashed: the plain rule `max` under the same tensor scales.",
    ),
    SCALE_PICTURE: (
        "Chosen group scales beside amax / 6",
        "Under amax / 6, rule `max`, the largest weight of a group becomes 6, the largest value. "
        "To the left of 0 it is clipped, to the right it becomes less than 6.",
    ),
}


def write_card(
    plan: Plan,
    stats: StatsByKey,
    rounded: int,
    source: dict[str, FileHash],
    pictures: dict[str, bytes],
) -> bytes:
    """README.md; the same plan, statistics and source give the same bytes.

    ``rounded`` values of a quantized source were not exact in BF16.
    """
    sections = [
        f"{front_matter(plan)}# {_formats(plan)} weights of a `hy_v3` checkpoint",
        _origin(plan, rounded),
        "## What became what",
        markdown_table(*summary_table(plan, stats)),
        "Errors are sums of squared errors relative to sums of squared weights.",
        *map(_picture, pictures),
        "## Recipe",
        *recipe_sections(plan),
        "## Source",
        f"{_published(plan)}SHA-256 of the files that this was made from. `hy3_manifest.json` "
        "holds those of this folder; `hy3 verify` checks both.",
        markdown_table(
            ("file", "SHA-256"), [(name, each.sha256) for name, each in sorted(source.items())]
        ),
    ]
    return ("\n\n".join(sections) + "\n").encode()


def _picture(name: str) -> str:
    title, reading = _CAPTIONS[name]
    return f"![{title}]({name})\n\n{title}. {reading}"


def _formats(plan: Plan) -> str:
    return " and ".join(sorted({line.format for line in plan.lines() if line.quantized}))


def _origin(plan: Plan, rounded: int) -> str:
    parameters = plan.parameters
    mtp = "in BF16" if parameters.mtp == "bf16" else "treated as the others"
    text = (
        f"Made by `hy3` {parameters.hy3_version} from {_source(plan)}: "
        f"recipe `{parameters.recipe}`, scale rule `{parameters.scales}`, MTP layer {mtp}, "
        f"layout `{parameters.format}`. "
        f"{format_bytes(plan.source_bytes)} became {format_bytes(plan.output_bytes)}. "
        f"{_activations(plan)}"
    )
    if plan.stored:
        text += (
            f" The source was quantized itself ({plan.source_scheme}): its weights were decoded to "
            f"BF16, which rounded {rounded} values, and what it had lost before stays lost. The "
            "errors below are against the decoded weights."
        )
    if plan.assignment.quantized & set(NVFP4_FORMS):
        text += (
            " Tensor scales of NVFP4 are powers of two, so every such weight is exact in BF16 once "
            "decoded."
        )
    if kept := sorted(parameters.nonfinite_names):
        text += (
            f" {len(kept)} tensors of the source hold NaN or infinity; they were copied with what "
            f"engines build as one with them: {', '.join(f'`{name}`' for name in kept)}."
        )
    return text


def _source(plan: Plan) -> str:
    forms = sorted({FORMAT_NAMES[weight.form] for weight in plan.stored.values()})
    return " and ".join(forms) or "BF16"


def _activations(plan: Plan) -> str:
    if FP8_BLOCK not in plan.assignment.quantized:
        return "Weights only: activations stay in BF16."
    return "Engines round the activations of the FP8 linears to FP8 as well, 128 at a time."


def _published(plan: Plan) -> str:
    if plan.origin is None:
        return ""
    return f"`{plan.origin.repository}` at revision `{plan.origin.revision}`. "

"""What the real engine makes of a checkpoint without its data: a run of ``dry_load.py``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from hy3.doctor.check import CannotTell, Check, Finding, clean, inconclusive, problem
from hy3.errors import EnvironmentFault
from hy3.nodes.node import HERE

_ALLOWED_S = 600
_FIX = "take another version of the engine or another form of the checkpoint (hy3 requantize)"


@dataclass(frozen=True)
class DryLoad:
    """What the engine said, or why it was not asked."""

    said: dict[str, Any] | CannotTell


def run_dry_load(folder: Path, python: tuple[str, ...]) -> DryLoad:
    """Let the engine of a Python on this machine build and fill the model."""
    script = resources.files("hy3.doctor").joinpath("dry_load.py").read_bytes()
    try:
        answer = HERE.run(*python, "-", str(folder), send=script, timeout_s=_ALLOWED_S)
        return DryLoad(dict(json.loads(answer.splitlines()[-1])))
    except (EnvironmentFault, IndexError, ValueError) as error:
        reason = f"the engine's Python did not answer ({error})"
        return DryLoad(CannotTell("INCONCLUSIVE", reason))


def not_asked() -> DryLoad:
    """Nobody wanted to know."""
    reason = "not asked for: --dry-load lets the engine's Python build it, without its data"
    return DryLoad(CannotTell("NOT CHECKED", reason))


def dry_load(case: DryLoad) -> Finding:
    """Refused, skipped or missing tensors are problems."""
    said = case.said
    if isinstance(said, CannotTell):
        raise said
    if said["engine"] is None:
        return inconclusive(
            f"that Python has no vLLM ({said['refused']})",
            "name the one that vLLM is installed for: --engine-python",
        )
    where = f"{said['engine']} on {said['device']}"
    if said["refused"]:
        return problem(f"{where} refuses it: {said['refused']}", _FIX)
    if said["skipped_count"]:
        shown = ", ".join(said["skipped"][:2])
        return problem(
            f"{where} skips {said['skipped_count']} of {said['tensors']} tensors: {shown}",
            "store tensors under the published names: a loader skips others without a word",
        )
    if said["unfilled_count"]:
        shown = ", ".join(said["unfilled"][:2])
        return problem(f"{where} finds nothing for {said['unfilled_count']}: {shown}", _FIX)
    return clean(
        f"{where} builds it and has a place for each of {said['tensors']} tensors; "
        f"all {said['parameters']} parameters are filled"
    )


CHECKS: tuple[Check[DryLoad], ...] = (
    Check(
        "dry-load",
        "stops",
        "the engine refuses the checkpoint, or skips part of it",
        "https://github.com/kaitakuai/experiments",
        dry_load,
    ),
)

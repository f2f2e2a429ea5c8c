"""The list of steps run in order, the first that does not hold ending the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hy3.demo.process import ServeProcess
from hy3.errors import Hy3Error

HELD, FAILED, NOT_RUN = "held", "failed", "not run"


@dataclass
class Course:
    """What the steps hand on to each other during one run."""

    model: Path
    out: Path
    say: Callable[[str], None]
    cleanup: ExitStack
    server: ServeProcess | None = None
    found: dict[str, Any] = field(default_factory=dict)  # goes into the JSON result

    @property
    def quantized(self) -> Path:
        """The NVFP4 checkpoint that the demo makes."""
        return self.out / f"{self.model.name}-nvfp4"


@dataclass(frozen=True)
class Step:
    """A name, what must hold for it, and the function that returns a line of what was found.

    The function raises an Hy3Error when the condition does not hold.
    """

    name: str
    condition: str
    run: Callable[[Course], str]


@dataclass(frozen=True)
class StepResult:
    """How one step ended."""

    name: str
    condition: str
    status: str
    seconds: float
    detail: str
    hint: str = ""


def run_steps(
    steps: Sequence[Step], model: Path, out: Path, say: Callable[[str], None]
) -> tuple[list[StepResult], dict[str, Any]]:
    """Run until one fails; the results of all steps and what was found on the way."""
    results: list[StepResult] = []
    with ExitStack() as cleanup:
        course = Course(model, out, say, cleanup)
        for number, step in enumerate(steps, 1):
            if any(result.status == FAILED for result in results):
                results.append(StepResult(step.name, step.condition, NOT_RUN, 0.0, ""))
                continue
            say(f"[{number}/{len(steps)}] {step.name}")
            results.append(_run_step(step, course))
    return results, course.found


def _run_step(step: Step, course: Course) -> StepResult:
    start_s = time.perf_counter()
    status, hint = HELD, ""
    try:
        detail = step.run(course)
    except Hy3Error as error:
        status, detail, hint = FAILED, str(error), error.hint
    seconds = time.perf_counter() - start_s
    course.say(f"      {detail}" + (f"\n      hint: {hint}" if hint else ""))
    return StepResult(step.name, step.condition, status, seconds, detail, hint)

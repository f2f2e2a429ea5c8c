"""``Check`` and ``Finding``: one question with an honest answer.

What could not be decided is never CLEAN: it is INCONCLUSIVE when something was seen that settles
nothing, and NOT CHECKED when there was nothing to look at or it may not be read.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from hy3.errors import Hy3Error

Verdict = Literal["PROBLEM", "CLEAN", "INCONCLUSIVE", "NOT CHECKED"]
# stops: a launch fails, hangs or dies; wrong: answers are wrong; slows: it runs, but slowly.
Severity = Literal["stops", "wrong", "slows"]

S = TypeVar("S")


@dataclass(frozen=True)
class Fix:
    """What to do: a sentence, and the commands that do it where commands can."""

    text: str
    commands: tuple[tuple[str, ...], ...] = ()

    def shown(self) -> list[str]:
        """The commands as a shell would take them."""
        return [shlex.join(command) for command in self.commands]


@dataclass(frozen=True)
class Finding:
    """The answer, and what was seen."""

    verdict: Verdict
    evidence: str
    fix: Fix | None = None


class CannotTell(Exception):
    """Raised inside a check when what it needs is not there; becomes its finding."""

    def __init__(self, verdict: Literal["INCONCLUSIVE", "NOT CHECKED"], reason: str) -> None:
        super().__init__(reason)
        self.finding = Finding(verdict, reason)


@dataclass(frozen=True)
class Check(Generic[S]):
    """One question about a subject: a host, several hosts, or a checkpoint."""

    id: str
    severity: Severity
    title: str  # the problem, as a sentence
    source: str  # address of the report that it comes from
    examine: Callable[[S], Finding]

    def run(self, subject: S) -> Finding:
        """Look; a file that is unsound is a reason not to know, never a crash."""
        try:
            return self.examine(subject)
        except CannotTell as reason:
            return reason.finding
        except Hy3Error as error:
            return Finding("INCONCLUSIVE", str(error))


def clean(evidence: str) -> Finding:
    """Nothing wrong was seen, and it would have been."""
    return Finding("CLEAN", evidence)


def problem(evidence: str, fix: str, *commands: tuple[str, ...]) -> Finding:
    """Something is wrong."""
    return Finding("PROBLEM", evidence, Fix(fix, commands))


def inconclusive(evidence: str, fix: str = "") -> Finding:
    """Something was seen that settles nothing."""
    return Finding("INCONCLUSIVE", evidence, Fix(fix) if fix else None)


def not_checked(reason: str) -> Finding:
    """There was nothing to look at."""
    return Finding("NOT CHECKED", reason)

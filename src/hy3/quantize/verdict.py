"""``Verdict``: the outcome of ``verify``, check by check. What was not checked never passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["pass", "fail", "warn", "not_proved"]


@dataclass(frozen=True)
class Check:
    """One question about a checkpoint and its answer."""

    id: str
    status: Status
    detail: str
    tensors: tuple[str, ...] = ()  # tensors or files concerned, complete


@dataclass(frozen=True)
class ClassError:
    """How far the quantized weights of a class are from their source."""

    squared_error: float
    squared_weight: float

    @property
    def relative(self) -> float:
        """Relative mean squared error; 0 for weights that are all zero and were kept."""
        return self.squared_error / self.squared_weight if self.squared_weight else 0.0

    def __add__(self, other: ClassError) -> ClassError:
        return ClassError(
            self.squared_error + other.squared_error, self.squared_weight + other.squared_weight
        )


@dataclass(frozen=True)
class Verdict:
    """All checks in the order they are explained in; ``ok`` when none failed."""

    checks: tuple[Check, ...]
    error_by_class: dict[str, ClassError]

    @property
    def ok(self) -> bool:
        """Whether no check failed; warnings and unproved checks do not count as failures."""
        return all(check.status != "fail" for check in self.checks)

    def count(self, status: Status) -> int:
        """How many checks ended so."""
        return sum(check.status == status for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """The result object of ``hy3 verify``."""
        return {
            "ok": self.ok,
            "checks": [{**vars(check), "tensors": list(check.tensors)} for check in self.checks],
            "error_by_class": {
                name: {"relative_mse": error.relative, "squared_error": error.squared_error}
                for name, error in self.error_by_class.items()
            },
        }


def judge(identity: str, faults: list[str] | tuple[str, ...], fault: str, fine: str) -> Check:
    """``fail`` naming the faulty tensors, or ``pass``."""
    if faults:
        return Check(identity, "fail", f"{len(faults)} {fault}", tuple(faults))
    return Check(identity, "pass", fine)


def not_proved(identity: str, reason: str) -> Check:
    """A check that could not be made."""
    return Check(identity, "not_proved", reason)

"""Choice between an operation's torch oracle and its fast twins.

An operation is declared by decorating its oracle; a twin registers with a predicate over the same
arguments, and the first twin whose predicate holds is run:

    @operation
    def scale(x: Tensor, factor: float) -> Tensor: ...

    @scale.twin("numba", when=lambda x, factor: x.device.type == "cpu")
    def _scale_numba(x: Tensor, factor: float) -> Tensor: ...

``scale(...)`` dispatches; ``scale.oracle`` and ``scale.named("numba")`` are single ones.
``HY3_KERNELS=torch`` forces the oracles; it is read once, when this module is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from hy3.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")


def read_choice(value: str) -> bool:
    """Whether ``HY3_KERNELS`` allows fast twins."""
    if value not in ("", "auto", "torch"):
        raise InputError(
            f"HY3_KERNELS is {value!r}",
            hint="use 'torch' for the readable reference operations, 'auto' for the fast ones",
            where="environment",
        )
    return value != "torch"


TWINS_ALLOWED = read_choice(os.environ.get("HY3_KERNELS", ""))


@dataclass(frozen=True)
class Twin(Generic[P, R]):
    """A fast implementation and the predicate that says which calls it may serve."""

    name: str
    when: Callable[P, bool]
    run: Callable[P, R]


class Operation(Generic[P, R]):
    """A callable that runs the first willing twin, else the oracle."""

    def __init__(self, oracle: Callable[P, R]) -> None:
        self.oracle = oracle
        self.twins: tuple[Twin[P, R], ...] = ()
        self.__doc__ = oracle.__doc__
        self.__name__ = oracle.__name__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if TWINS_ALLOWED:
            for twin in self.twins:
                if twin.when(*args, **kwargs):
                    return twin.run(*args, **kwargs)
        return self.oracle(*args, **kwargs)

    def twin(self, name: str, when: Callable[P, bool]) -> Callable[[Any], Callable[P, R]]:
        """Register a twin; earlier ones are asked first."""

        def register(run: Callable[P, R]) -> Callable[P, R]:
            assert all(twin.name != name for twin in self.twins), f"two twins named {name}"
            self.twins += (Twin(name, when, run),)
            return run

        return register

    def named(self, name: str) -> Callable[P, R]:
        """One implementation, for tests and benchmarks: ``"torch"`` or a twin's name."""
        implementations = {"torch": self.oracle} | {twin.name: twin.run for twin in self.twins}
        return implementations[name]


def operation(oracle: Callable[P, R]) -> Operation[P, R]:
    """Declare the decorated torch function as the oracle of an operation."""
    return Operation(oracle)

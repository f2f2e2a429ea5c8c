"""What the server needs of an engine, as protocols; ``deploy.native`` is the real one.

All methods are called on the event loop's thread; a backend crosses to its own thread by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from hy3.engine.request import Request, StepOutput
from hy3.engine.stats import EngineStats

Status = Literal["loading", "ready", "failed"]


class EngineFailure(Exception):
    """The engine stopped; every request that it held has ended with this."""


class Outputs(Protocol):
    """The steps of a group of requests, in the order in which the engine made them."""

    async def next(self) -> StepOutput:
        """The next step of any of the requests; raises EngineFailure."""

    def abort(self, request_id: str) -> None:
        """End one request; its last step (``finish_reason`` "abort") still arrives."""

    def close(self) -> None:
        """Abort whatever still runs; nothing arrives any more. May be called twice."""


class Backend(Protocol):
    """An engine behind an asynchronous door."""

    @property
    def status(self) -> Status:
        """``ready`` once a token has been generated; ``failed`` is final."""

    @property
    def max_context(self) -> int:
        """Most tokens of one request, prompt and output together; valid when ready."""

    def stats(self) -> EngineStats | None:
        """The engine's latest counters; None before it is ready."""

    async def submit(self, requests: Sequence[Request]) -> Outputs:
        """Hand over requests, all or none; returns once the engine has accepted them.

        Raises InputError for a request that can never run, EngineFailure.
        """

    def start(self) -> None:
        """Begin loading; returns at once."""

    async def close(self) -> None:
        """Stop the engine, ending what still runs."""

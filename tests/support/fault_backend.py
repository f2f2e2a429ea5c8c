"""A backend that plays a script: for timings and faults that the real engine does not produce."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from hy3.engine.request import Request, StepOutput, Usage
from hy3.engine.stats import EngineStats
from hy3.server.backend import EngineFailure, Status


@dataclass(frozen=True)
class Step:
    """Tokens that come together after a pause; ``fault`` ends the engine instead."""

    token_ids: tuple[int, ...]
    pause_s: float = 0.0
    fault: str = ""


@dataclass
class FaultBackend:
    """Answers every request with ``script``, then length; remembers who is still running."""

    script: Sequence[Step] = ()
    status: Status = "ready"
    max_context: int = 2048
    refuses: str = ""  # fail every submission with this
    running: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    submitted: list[Request] = field(default_factory=list)
    started: int = 0
    closed: int = 0

    def stats(self) -> EngineStats | None:
        return None

    def start(self) -> None:
        self.started += 1

    async def close(self) -> None:
        self.closed += 1

    async def submit(self, requests: Sequence[Request]) -> FaultOutputs:
        if self.refuses:
            raise EngineFailure(self.refuses)
        self.submitted += requests
        self.running |= {request.id for request in requests}
        return FaultOutputs(self, requests, self.script)


class FaultOutputs:
    """Plays the script for each request in turn, until aborted."""

    def __init__(
        self, backend: FaultBackend, requests: Sequence[Request], script: Sequence[Step]
    ) -> None:
        self.backend = backend
        self.sent = {request.id: 0 for request in requests}
        self.waiting = [(request, step) for step in script for request in requests]
        self.requests = {request.id: request for request in requests}
        self.left = {request.id: len(script) for request in requests}

    async def next(self) -> StepOutput:
        request, step = self.waiting.pop(0)
        await asyncio.sleep(step.pause_s)
        if step.fault:
            raise EngineFailure(step.fault)
        self.left[request.id] -= 1
        self.sent[request.id] += len(step.token_ids)
        if self.left[request.id]:
            return StepOutput(request.id, step.token_ids)
        return self._last(request, step.token_ids, "length")

    def abort(self, request_id: str) -> None:
        request = self.requests[request_id]
        self.waiting = [item for item in self.waiting if item[0].id != request_id]
        self.waiting.insert(0, (request, Step(())))
        self.left[request_id] = 1

    def close(self) -> None:
        left = set(self.requests) & self.backend.running
        self.backend.aborted |= left
        self.backend.running -= left

    def _last(self, request: Request, token_ids: tuple[int, ...], reason: str) -> StepOutput:
        self.backend.running.discard(request.id)
        usage = Usage(len(request.prompt_ids), self.sent[request.id], 0, (), ())
        return StepOutput(request.id, token_ids, finish_reason=reason, usage=usage)

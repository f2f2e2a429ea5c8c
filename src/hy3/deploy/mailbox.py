"""What passes between the event loop and the engine's thread: commands there, outputs back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from queue import SimpleQueue

from hy3.engine.request import Request, StepOutput
from hy3.server.backend import EngineFailure


@dataclass(frozen=True)
class Add:
    """Queue these requests, all or none, and send their outputs to ``mailbox``."""

    requests: tuple[Request, ...]
    mailbox: Mailbox


@dataclass(frozen=True)
class Abort:
    """End these requests, as far as they still run."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True)
class Stop:
    """End the thread."""


Command = Add | Abort | Stop


class Mailbox:
    """The outputs of one group of requests; lives on the event loop's thread."""

    def __init__(self, commands: SimpleQueue[Command], request_ids: tuple[str, ...]) -> None:
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commands = commands
        self._open = set(request_ids)
        self._arrived: asyncio.Queue[StepOutput | EngineFailure] = asyncio.Queue()

    async def next(self) -> StepOutput:
        """The next output of any of the requests; raises EngineFailure."""
        item = await self._arrived.get()
        if isinstance(item, EngineFailure):
            raise item
        return item

    def abort(self, request_id: str) -> None:
        """End one request; its last output still arrives."""
        self._commands.put(Abort((request_id,)))

    def close(self) -> None:
        """End what still runs; may be called twice."""
        if self._open:
            self._commands.put(Abort(tuple(self._open)))
            self._open.clear()

    def accept(self) -> None:
        """The engine took the requests."""
        if not self.accepted.done():
            self.accepted.set_result(None)

    def fail(self, error: Exception) -> None:
        """The engine did not take the requests, or ended before they did."""
        if not self.accepted.done():
            self.accepted.set_exception(error)
        elif isinstance(error, EngineFailure):
            self._arrived.put_nowait(error)

    def put(self, output: StepOutput) -> None:
        """One output arrives."""
        if output.finish_reason is not None:
            self._open.discard(output.request_id)
        self._arrived.put_nowait(output)


def post(letters: Iterable[tuple[Mailbox, StepOutput]]) -> None:
    """Put the outputs of one step into their mailboxes."""
    for mailbox, output in letters:
        mailbox.put(output)

"""Runs an application in the foreground: listens, announces readiness, drains on a signal."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from hy3.errors import EnvironmentFault
from hy3.server.backend import Backend
from hy3.server.limits import Limits


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises EnvironmentFault if there is none."""
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot listen there ({error.strerror or error})",
            hint="choose another --port (0 takes a free one) or another --host",
            where=f"{host}:{port}",
        ) from error


def url_of(listener: socket.socket) -> str:
    """The base URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class DrainingServer(uvicorn.Server):
    """Ends on the first signal once its requests have finished, on the second at once (130).

    It also ends when the backend has failed; ``on_ready`` is called once when it is ready.
    """

    def __init__(
        self, app: FastAPI, backend: Backend, limits: Limits, on_ready: Callable[[], None]
    ) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=limits.drain_seconds,
        )
        super().__init__(config)
        self._backend = backend
        self._on_ready: Callable[[], None] | None = on_ready

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: look at the backend."""
        if self._on_ready is not None and self._backend.status == "ready":
            self._on_ready()
            self._on_ready = None
        return await super().on_tick(counter) or self._backend.status == "failed"

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on the first signal; the second cannot wait for anything."""
        if self.should_exit:
            leave(128 + signal.SIGINT)
        self.should_exit = True


def leave(code: int) -> None:
    """End the process without waiting for threads, which may be deep in a library."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

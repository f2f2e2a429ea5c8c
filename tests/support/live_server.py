"""An application on a real socket of its own, in a thread, for tests that speak HTTP."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from hy3.server.backend import Backend

DEADLINE_S = 60.0


@contextmanager
def live_server(app: FastAPI, backend: Backend, ready: bool = True) -> Iterator[str]:
    """Serve ``app`` on a free port and yield its URL; waits until ``backend`` is ready."""
    config = uvicorn.Config(app, port=0, log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started and not (ready and backend.status == "loading"))
        assert not ready or backend.status == "ready"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def wait_until(condition, deadline_s: float = DEADLINE_S) -> None:
    """Poll until ``condition()`` holds; fails after the deadline."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)

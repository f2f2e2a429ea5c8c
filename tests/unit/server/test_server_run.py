"""Listening, the end of a drain, and a backend that fails under a running server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2 as httpx
import pytest

from hy3.errors import EnvironmentFault
from hy3.server.app import create_app
from hy3.server.keys import ApiKeys
from hy3.server.limits import Limits
from hy3.server.run import DrainingServer, listen, url_of
from hy3.server.served import load_served_model
from support.fault_backend import FaultBackend, Step
from support.live_server import wait_until
from support.served_models import random_folder

ENDLESS = {"model": "m", "prompt": "x", "stream": True}


@contextmanager
def running(backend: FaultBackend) -> Iterator[tuple[DrainingServer, str, list[bool]]]:
    """A server with a drain of one second in a thread; the list grows when it is ready."""
    limits, ready = Limits(drain_seconds=1), []
    app = create_app(backend, load_served_model(random_folder(), "m"), limits, ApiKeys())
    listener = listen("127.0.0.1", 0)
    url = url_of(listener)
    server = DrainingServer(app, backend, limits, lambda: ready.append(True))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield server, url, ready
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
        assert (backend.started, backend.closed) == (1, 1)


def test_a_drain_ends_what_does_not_end_by_itself() -> None:
    backend = FaultBackend([Step((33,)), Step((33,), pause_s=600)])
    with running(backend) as (server, url, ready):
        wait_until(lambda: ready)
        with httpx.stream("POST", f"{url}/v1/completions", json=ENDLESS, timeout=30) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            server.should_exit = True
            with pytest.raises(httpx.RemoteProtocolError):
                list(lines)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
    assert len(backend.aborted) == 1
    assert ready == [True]


def test_a_failed_backend_ends_the_server() -> None:
    backend = FaultBackend()
    with running(backend) as (server, url, _):
        assert httpx.get(f"{url}/health").status_code == 200
        backend.status = "failed"
        wait_until(lambda: backend.closed)
        assert not server.should_exit


def test_readiness_is_announced_when_it_comes() -> None:
    backend = FaultBackend(status="loading")
    with running(backend) as (_, url, ready):
        assert httpx.get(f"{url}/health").status_code == 503
        assert ready == []
        backend.status = "ready"
        wait_until(lambda: ready)


def test_addresses() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert url_of(taken) == f"http://127.0.0.1:{port}"
        with pytest.raises(EnvironmentFault, match="cannot listen"):
            listen("127.0.0.1", port)
    with pytest.raises(EnvironmentFault):
        listen("no-such-host.invalid", 0)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_an_ipv6_address_is_written_in_brackets() -> None:
    try:
        listener = listen("::1", 0)
    except EnvironmentFault:
        pytest.skip("the loopback interface has no IPv6 address")
    with listener:
        assert url_of(listener).startswith("http://[::1]:")

"""A closed loop: N streams, each sending its next request when the last one has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from hy3.bench.client import Endpoint
from hy3.bench.trace import RequestTrace, measure


async def closed_loop(
    endpoint: Endpoint,
    path: str,
    bodies: Iterable[dict[str, Any]],
    streams: int,
) -> list[RequestTrace]:
    """Send every body once over ``streams`` concurrent streams; traces in order of their end.

    The number of bodies bounds the run, and the endpoint's time limit bounds each request.
    """
    queue = iter(bodies)
    traces: list[RequestTrace] = []

    async def run_stream(stream: int, queue: Iterator[dict[str, Any]]) -> None:
        for body in queue:
            trace = await measure(endpoint, path, body, stream)
            traces.append(trace)

    await asyncio.gather(*(run_stream(stream, queue) for stream in range(streams)))
    return traces

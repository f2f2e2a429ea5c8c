"""``Link``: what an all-reduce should take, by the way that the data went (links.toml)."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

# "Using network IB", and since 2.28 "Assigned NET plugin IB to comm".
_NETWORK = re.compile(r"NCCL INFO.*(?:Using network|Assigned NET plugin) (\w+)")
_ADAPTERS = re.compile(r"NCCL INFO NET/IB : Using (.*)")
_ONE_ADAPTER = re.compile(r"\[\d+\]([\w.+-]+):\d+/")


@dataclass(frozen=True)
class Link:
    """Usual figures are others' measurements; beyond the worst ones something is wrong."""

    name: str
    label: str
    network: str
    adapters: int
    usual_small_us: float
    worst_small_us: float
    usual_large_gb_s: float
    worst_large_gb_s: float
    fix: str
    sources: dict[str, str]


@dataclass(frozen=True)
class Way:
    """How the data went: NCCL's name of the network, and the adapters that it found."""

    network: str
    adapters: tuple[str, ...]

    @property
    def link(self) -> Link | None:
        """What is expected of it; None where nothing is known."""
        fitting = [
            link
            for link in load_links()
            if link.network == self.network and link.adapters <= len(self.adapters)
        ]
        return max(fitting, key=lambda link: link.adapters, default=None)


def way_of(backend: str, log: str) -> Way:
    """Read what NCCL writes with NCCL_DEBUG=INFO; another backend is its own network."""
    if backend != "nccl":
        return Way(backend, ())
    network = _NETWORK.search(log)
    listed = _ADAPTERS.search(log)
    adapters = tuple(_ONE_ADAPTER.findall(listed[1])) if listed else ()
    return Way(network[1] if network else "unknown", adapters)


@lru_cache(maxsize=1)
def load_links() -> tuple[Link, ...]:
    """The table, in its order."""
    text = resources.files("hy3.doctor").joinpath("links.toml").read_text(encoding="utf-8")
    return tuple(Link(name=name, **entry) for name, entry in tomllib.loads(text).items())

"""What each version of an engine can do (engines.toml), and ``vllm==0.26.0`` as it is typed."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from hy3.errors import InputError

ENGINES = ("vllm", "sglang")
_TYPED = re.compile(r"(vllm|sglang)==(\d+(?:\.\d+)+\S*)")


@dataclass(frozen=True)
class Engine:
    """An engine that is to serve the checkpoint."""

    name: str
    version: str


@dataclass(frozen=True)
class Feature:
    """One line of the table."""

    id: str
    title: str  # the problem where it is missing
    severity: str
    needs: str  # what of a checkpoint makes it matter
    depends: str  # why its absence alone is no problem; empty where it is
    fix: str
    source: str
    versions: dict[str, dict[str, bool]]  # engine -> version -> whether it is there

    def known(self, engine: Engine) -> bool | None:
        """Whether a version has it; None where nothing is known of that version."""
        asked = version_key(engine.version)
        table = {version_key(v): there for v, there in self.versions.get(engine.name, {}).items()}
        # A development build is before the release it is named after; what it has is not known.
        final = "dev" not in engine.version
        older = [version for version in table if version < asked or (final and version == asked)]
        newer = [version for version in table if version > asked or (final and version == asked)]
        if older and table[max(older)]:
            return True
        if newer and not table[min(newer)]:
            return False
        return None

    def first(self, engine: str) -> str:
        """The oldest version of an engine that is known to have it."""
        return min((v for v, there in self.versions[engine].items() if there), key=version_key)


def version_key(text: str) -> tuple[int, ...]:
    """The leading numbers of a version, for comparisons."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def parse_engine(text: str) -> Engine:
    """``vllm==0.26.0``.

    Raises:
        InputError: anything else.
    """
    found = _TYPED.fullmatch(text)
    if not found:
        raise InputError(
            f"{text!r} names no engine and version",
            hint="write vllm==VERSION or sglang==VERSION",
            where="--engine",
        )
    return Engine(found[1], found[2])


def features() -> tuple[Feature, ...]:
    """The table, in its order."""
    return tuple(
        Feature(
            id=name,
            title=entry["title"],
            severity=entry["severity"],
            needs=entry["needs"],
            depends=entry.get("depends", ""),
            fix=entry["fix"],
            source=entry["source"],
            versions={engine: entry[engine] for engine in ENGINES if engine in entry},
        )
        for name, entry in _table().items()
        if name != "nccl"
    )


def feature(name: str) -> Feature:
    """One line by its id."""
    return next(each for each in features() if each.id == name)


def nccl_floor() -> str:
    """The first NCCL that replays graphs across machines."""
    return str(_table()["nccl"]["floor"])


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    text = resources.files("hy3.doctor").joinpath("engines.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)

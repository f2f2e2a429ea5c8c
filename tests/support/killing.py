"""Runs that die by SIGKILL at a chosen call, and how much work they and their reruns did."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any

import hy3.quantize.stream as stream
from support.os_calls import Call, Phases, watching
from support.quantizing import plan_of, run, run_in_child, tree

MOMENTS = ("before", "half", "after")  # of a call


@dataclass(frozen=True)
class Place:
    """Where a run dies: at the ``number``-th call of a phase, or opening of the source."""

    phase: str
    number: int
    moment: str  # of MOMENTS, or "reads source"; before the call if it is no write to be halved


@dataclass(frozen=True)
class Killed:
    """What one kill cost."""

    place: Place
    workers: int
    encoded: int  # weights encoded by the killed run and its rerun together
    weights: int  # that there are


class EncodeCount:
    """Counts calls of ``encode`` in this process and in children that are forked later."""

    def __init__(self) -> None:
        self._shared = mmap(-1, 8)

    def __enter__(self) -> EncodeCount:
        self._real = stream.encode

        def counted(*arguments: Any) -> Any:
            # Threads of one process are kept apart by the interpreter's lock for one statement.
            result = self._real(*arguments)
            self._shared[:] = (self.value + 1).to_bytes(8, "little")
            return result

        stream.encode = counted
        return self

    def __exit__(self, *_: object) -> None:
        stream.encode = self._real

    @property
    def value(self) -> int:
        return int.from_bytes(self._shared[:], "little")


def calls_of_a_run(source: Path, out: Path) -> list[tuple[str, Call]]:
    """Each call of a whole run with one worker, by phase."""
    phases = Phases()
    seen: list[tuple[str, Call]] = []

    def record(call: Call, do: Callable[[], Any]) -> Any:
        seen.append((phases.of(call), call))
        return do()

    with watching(out, record):
        run(source, out, workers=1)
    return seen


def places_of(calls: list[tuple[str, Call]], source_files: int) -> list[Place]:
    """All places where a run can be killed, phase by phase."""
    places = [Place("plan", i + 1, "reads source") for i in range(source_files)]
    numbers: dict[str, int] = {}
    for phase, call in calls:
        number = numbers[phase] = numbers.get(phase, 0) + 1
        moments = MOMENTS if call.kind == "write" and len(call.data) > 1 else ("before", "after")
        places += [Place(phase, number, moment) for moment in moments]
    return places


def choose(places: list[Place], count: int, seed: int) -> list[Place]:
    """So many of them, drawn evenly from all phases; again from the start where one has few."""
    chance = random.Random(seed)
    by_phase: dict[str, list[Place]] = {}
    for place in places:
        by_phase.setdefault(place.phase, []).append(place)
    rows = [chance.sample(each, len(each)) for each in by_phase.values()]
    return [rows[i % len(rows)][i // len(rows) % len(rows[i % len(rows)])] for i in range(count)]


def kill_at(out: Path, place: Place) -> Callable[[], None]:
    """For ``run_in_child``: SIGKILL when the run comes to that place."""
    phases = Phases()
    seen = 0

    def watch(call: Call, do: Callable[[], Any]) -> Any:
        nonlocal seen
        if phases.of(call) != place.phase:
            return do()
        seen += 1
        if seen != place.number:
            return do()
        if place.moment == "after":
            do()
        elif place.moment == "half" and call.kind == "write":
            half_write(out, call)
        die()

    # Entered in the child and never left: the process ends in it.
    context = watching(out, watch)

    def prepare() -> None:
        context.__enter__()

    return prepare


def half_write(out: Path, call: Call) -> None:
    """The first half of a write, by another way."""
    with (out / call.name).open("r+b") as file:
        file.seek(call.offset)
        file.write(call.data[: len(call.data) // 2])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(10)  # the signal may be taken by another thread first


def kill_at_source_open(source: Path, number: int) -> Callable[[], None]:
    """For ``run_in_child``: SIGKILL at the n-th opening of a file of the source, as it plans."""
    seen = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event == "open" and str(arguments[0]).startswith(str(source)):
            seen += 1
            if seen == number:
                die()

    return lambda: sys.addaudithook(hook)


def kill_and_rerun(
    source: Path, out: Path, place: Place, workers: int, expected: dict[str, str], weights: int
) -> Killed:
    """Kill a run in an empty folder, rerun, compare; at most a weight for each worker is redone."""
    shutil.rmtree(out, ignore_errors=True)
    planning = place.moment == "reads source"
    prepare = kill_at_source_open(source, place.number) if planning else kill_at(out, place)
    with EncodeCount() as count:
        status = run_in_child(source, out, prepare, workers)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (place, status)
        run(source, out, workers=workers)
        assert tree(out) == expected, place
        assert count.value <= weights + workers, (place, count.value)
        return Killed(place, workers, count.value, weights)


def weights_of(source: Path) -> int:
    """How many weights a run quantizes."""
    return sum(step.quantized for step in plan_of(source).steps())

"""Kills and power cuts of ``hy3 quantize`` on a small generated checkpoint, and what they cost.

    python benchmarks/quantize_faults.py [--kills N]

Every run dies by SIGKILL before, after or halfway through one of its calls to the operating system
and is run again; then a power cut is assumed after every call of one run, with all, none or half of
what was not flushed lost. Each rerun must end with the bytes of a run that was left alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from record import ROOT, record

sys.path.insert(0, str(ROOT / "tests"))
from support.killing import (
    calls_of_a_run,
    choose,
    kill_and_rerun,
    places_of,
    weights_of,
)
from support.power_cut import CHANCES, check_cuts
from support.power_cut import record as record_calls
from support.quantizing import drawn_once, tree
from support.scripted import make_random


def kills(folder: Path, count: int) -> dict[str, Any]:
    """Kill with one worker and with two in turn."""
    source, out = make_random(folder / "source", seed=5, shards=4, num_experts=2), folder / "out"
    calls = calls_of_a_run(source, out)
    expected, weights = tree(out), weights_of(source)
    places = choose(places_of(calls, source_files=6), count, seed=1)
    killed = [
        kill_and_rerun(source, out, place, 1 + number % 2, expected, weights)
        for number, place in enumerate(places)
    ]
    phases = Counter(each.place.phase for each in killed)
    moments = Counter(each.place.moment for each in killed)
    return {
        "kills": len(killed),
        "identical_reruns": len(killed),  # the first that is not ends this script
        "by_phase": dict(phases),
        "by_moment": dict(moments),
        "most_weights_encoded_twice": {
            f"{workers} workers": max(
                each.encoded - each.weights for each in killed if each.workers == workers
            )
            for workers in (1, 2)
        },
    }


def power_cuts(folder: Path) -> dict[str, Any]:
    """A cut after every call of a run with two workers."""
    source, out = make_random(folder / "source", seed=7, shards=4, num_experts=8), folder / "out"
    calls = record_calls(source, out)
    os.fsync = lambda descriptor: None  # the disk is a model from here on
    folders = check_cuts(source, tree(out), calls, folder / "cut", step=1)
    return {"prefixes": len(calls), "folders": folders, "unflushed_kept": list(CHANCES)}


def main() -> None:
    """Leave benchmarks/results/quantize_faults.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=207)
    count = parser.parse_args().kills
    results: dict[str, Any] = {}
    with drawn_once():
        for name, work in (("kills", lambda f: kills(f, count)), ("power_cuts", power_cuts)):
            with tempfile.TemporaryDirectory() as folder:
                results[name] = work(Path(folder))
    print(record("quantize_faults", {"results": results}))


if __name__ == "__main__":
    main()

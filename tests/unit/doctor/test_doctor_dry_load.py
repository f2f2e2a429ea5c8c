"""The dry load: its watch over a loader, its script without an engine, and what is made of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hy3.doctor.checks.dry_load import CHECKS, DryLoad, not_asked, run_dry_load
from hy3.doctor.dry_load import Watch

(DRY_LOAD,) = CHECKS
SOUND = {
    "engine": "vLLM 0.32.0",
    "device": "cpu",
    "refused": None,
    "parameters": 77,
    "tensors": 323,
    "unfilled": [],
    "skipped": [],
    "unfilled_count": 0,
    "skipped_count": 0,
}


class Experts(torch.nn.Module):
    """Two experts in one parameter and a norm, loaded as engines do it: unknown names pass by."""

    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            self.w13 = torch.nn.Parameter(torch.empty(2, 8, 4), requires_grad=False)
            self.norm = torch.nn.Parameter(torch.empty(4), requires_grad=False)

    def load_weights(self, tensors: Any) -> None:
        for name, value in tensors:
            if name == "norm":
                self.norm.data.copy_(value)
            elif name.startswith("expert"):
                _, index, half = name.split(".")
                row = 0 if half == "gate" else 4
                self.w13.data[int(index)][row : row + 4] = value.to(torch.float32)


def checkpoint(folder: Path, *without: str, **more: list[int]) -> Path:
    shapes = {f"expert.{i}.{half}": [4, 4] for i in (0, 1) for half in ("gate", "up")}
    shapes |= {"norm": [4], **more}
    entries, offset = {}, 0
    for name, shape in shapes.items():
        if name not in without:
            size = 2 * torch.Size(shape).numel()
            entries[name] = {
                "dtype": "BF16",
                "shape": shape,
                "data_offsets": [offset, offset + size],
            }
            offset += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    return folder


def watch(folder: Path) -> tuple[set[str], list[str]]:
    """Tensors that were skipped, and parameters that were not filled."""
    seen, model = Watch(), Experts()
    with seen:
        model.load_weights(seen.tensors(folder))
    return {name for name, _ in seen.stored.values()} - seen.used, seen.report(model)


def test_a_sound_load(tmp_path):
    assert watch(checkpoint(tmp_path)) == (set(), [])


def test_a_missing_half_of_one_expert(tmp_path):
    assert watch(checkpoint(tmp_path, "expert.1.up")) == (set(), ["w13"])


def test_a_name_that_the_loader_skips(tmp_path):
    assert watch(checkpoint(tmp_path, **{"shared_experts.up": [4, 4]})) == (
        {"shared_experts.up"},
        [],
    )


def test_a_python_without_an_engine(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    found = DRY_LOAD.run(run_dry_load(tmp_path, (sys.executable,)))
    assert found.verdict == "INCONCLUSIVE" and "No module named 'vllm'" in found.evidence


@pytest.mark.parametrize("body", ["exit 3", "echo nothing", "true"])
def test_a_python_that_does_not_answer(tmp_path, body):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat >/dev/null\n{body}\n")
    program.chmod(0o755)
    found = DRY_LOAD.run(run_dry_load(tmp_path, (str(program),)))
    assert found.verdict == "INCONCLUSIVE" and "did not answer" in found.evidence


@pytest.mark.parametrize(
    ("changed", "verdict", "words"),
    [
        ({}, "CLEAN", "a place for each of 323 tensors"),
        ({"refused": "ValueError: no backend"}, "PROBLEM", "refuses it: ValueError: no backend"),
        ({"skipped": ["a", "b"], "skipped_count": 9}, "PROBLEM", "skips 9 of 323 tensors: a, b"),
        ({"unfilled": ["w2"], "unfilled_count": 1}, "PROBLEM", "finds nothing for 1: w2"),
    ],
)
def test_what_the_engine_says_is_judged(changed, verdict, words):
    found = DRY_LOAD.run(DryLoad(SOUND | changed))
    assert found.verdict == verdict and words in found.evidence


def test_nobody_asked():
    assert DRY_LOAD.run(not_asked()).verdict == "NOT CHECKED"

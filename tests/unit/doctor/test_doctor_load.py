"""A GPU at work: planted readings of the driver, and a stand-in for the engine's Python."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hy3.doctor import gpu_load
from hy3.doctor.check import CannotTell
from hy3.doctor.checks import load as load_checks
from hy3.doctor.checks.load import Load, Worked, run_load
from hy3.doctor.software import parse_gpu
from support.planted_host import PlantedHost

CHECKS = {check.id: check for check in load_checks.CHECKS}
# name, capability, driver, clock, top clock, load, power, reasons, power limit
SPARK = "NVIDIA GB10, 12.1, 580.95.05, {clock}, 3003, {busy}, {power}, 0x{limits:016x}, [N/A]"
CARD = "NVIDIA H200, 9.0, 580.95.05, {clock}, 1980, {busy}, {power}, 0x{limits:016x}, 700.00"
IDLE = {"clock": 208, "busy": 0, "power": 11.5, "limits": 1}
WORK = {"clock": 2405, "busy": 96, "power": 71.2, "limits": 4}


def worked(line: str = SPARK, tflops: float = 90, gb_s: float = 232, **changed: Any) -> Load:
    """One device; what is changed is so in the readings at work."""
    gpus = [parse_gpu(line.format(**(WORK | changed))) for _ in range(5)]
    idle = parse_gpu(line.format(**IDLE))
    return Load(20, (Worked(idle, tuple(gpus), idle, tflops * 1e12, gb_s * 1e9),))


@pytest.mark.parametrize("identity", CHECKS)
def test_clean(identity):
    assert CHECKS[identity].run(worked()).verdict == "CLEAN"
    card = worked(CARD, 700, 4300, clock=1755, power=640)
    assert CHECKS[identity].run(card).verdict == "CLEAN"


@pytest.mark.parametrize(
    ("identity", "load", "verdict", "words"),
    [
        ("clocks-under-load", worked(clock=799), "PROBLEM", "208 - 799 - 208 MHz"),
        ("clocks-under-load", worked(clock=2150), "CLEAN", "3003 at most"),
        ("clocks-under-load", worked(clock="[N/A]"), "INCONCLUSIVE", "does not tell"),
        ("limits-under-load", worked(limits=0x24), "PROBLEM", "heat"),
        ("limits-under-load", worked(limits=0x80), "PROBLEM", "power brake"),
        ("power-under-load", worked(power=19.5), "PROBLEM", "12 - 20 - 12 W"),
        ("power-under-load", worked(power="[N/A]"), "INCONCLUSIVE", "does not tell"),
        ("power-under-load", worked(CARD, power=120), "PROBLEM", "210 W and more"),
        ("speed-under-load", worked(gb_s=70), "PROBLEM", "reads 70 GB/s (26%)"),
        ("speed-under-load", worked(tflops=30), "PROBLEM", "30 TFLOPS (24% of the table)"),
        ("speed-under-load", worked(tflops=60), "INCONCLUSIVE", "60 TFLOPS"),
        ("speed-under-load", worked("NVIDIA X1" + SPARK[11:]), "INCONCLUSIVE", "not in the table"),
    ],
)
def test_planted_faults(identity, load, verdict, words):
    found = CHECKS[identity].run(load)
    assert found.verdict == verdict and words in found.evidence, found.evidence


def test_one_reading_with_heat_is_enough():
    load = worked()
    (device,) = load.devices
    hot = replace(device.during[2], limits=0x40)
    during = (*device.during[:2], hot, *device.during[3:])
    found = CHECKS["limits-under-load"].run(Load(20, (replace(device, during=during),)))
    assert found.verdict == "PROBLEM" and "heat (hardware)" in found.evidence


def why(load: Load) -> tuple[str, str]:
    assert isinstance(load.result, CannotTell)
    findings = {check.run(load) for check in CHECKS.values()}
    assert len(findings) == 1, "every check gives the same reason"
    return load.result.finding.verdict, load.result.finding.evidence


def test_reasons_for_no_run(tmp_path):
    planted = PlantedHost(tmp_path)
    assert "--gpu-load 20" in why(run_load(planted.gather(), ("python3",), 0))[1]
    planted.engine()
    assert why(run_load(planted.gather(), ("python3",), 5)) == (
        "NOT CHECKED",
        "an engine is running: stop it first",
    )
    (planted.root / "usr/bin/nvidia-smi").unlink()
    assert "no NVIDIA driver" in why(run_load(planted.gather(), ("python3",), 5))[1]


def engine_python(tmp_path, body: str) -> tuple[str, ...]:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat >{tmp_path}/script\n{body}\n")
    program.chmod(0o755)
    return (str(program),)


def test_the_script_goes_to_the_engines_python(tmp_path):
    host = PlantedHost(tmp_path / "root").gather()
    line = SPARK.format(**WORK)
    device = {"before": line, "during": [line], "after": line, "flops": 9e13, "read_bytes_s": 2e11}
    answer = json.dumps({"devices": [device]})
    python = engine_python(tmp_path, f"echo 'a warning'; echo '{answer}'; echo \"$@\" >&2")
    load = run_load(host, python, 5)
    assert load.devices[0].flops == 9e13
    assert "nvidia-smi" in (tmp_path / "script").read_text()


def test_the_script_itself_on_a_processor(tmp_path, monkeypatch):
    """Everything but CUDA is real: readings before, during and after, and both rates."""
    program = tmp_path / "nvidia-smi"
    readings = tmp_path / "readings"
    program.write_text(f"#!/bin/sh\necho $* >> {readings}\necho '{SPARK.format(**WORK)}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    randn = torch.randn
    for name, stand_in in {
        "set_device": lambda index: None,
        "synchronize": lambda: None,
        "get_device_properties": lambda index: SimpleNamespace(uuid="12-34"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch, "randn", lambda *shape, device, dtype: randn(*shape, dtype=dtype))
    sizes = {"_SQUARE": 128, "_THIN": 256, "_BLOCK_S": 0.02, "_SETTLE_S": 0.0}
    for name, value in {**sizes, "_BETWEEN_READINGS_S": 0.05}.items():
        monkeypatch.setattr(gpu_load, name, value)
    said = gpu_load.work_one(0, 0.4)
    lines = readings.read_text().splitlines()
    assert len(lines) == len(said["during"]) + 2 and len(said["during"]) >= 2
    assert lines[0].startswith("-i GPU-12-34") and "power.limit" in lines[0]
    assert parse_gpu(said["after"]).power_w == 71.2
    assert said["flops"] > 0 and said["read_bytes_s"] > 0


def test_a_device_that_flips_into_a_slow_state_shows_it():
    assert gpu_load.lowest_tenth([30.0, *[100.0] * 19]) == 100
    assert gpu_load.lowest_tenth([100.0] * 15 + [30.0] * 5) == 30
    assert gpu_load.lowest_tenth([7.0]) == 7


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1", "named 'torch'"),
        ("echo '{'", "did not run"),
        ("true", "did not run"),
        ("echo '{\"devices\": []}'", "works 0 of 1 devices"),
    ],
)
def test_a_run_that_fails(tmp_path, body, reason):
    host = PlantedHost(tmp_path / "root").gather()
    verdict, evidence = why(run_load(host, engine_python(tmp_path, body), 5))
    assert verdict == "INCONCLUSIVE" and reason in evidence

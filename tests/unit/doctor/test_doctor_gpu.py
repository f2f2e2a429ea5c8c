"""Clocks, heat, waiting and old libraries: planted answers of the driver."""

from __future__ import annotations

import pytest

from hy3.doctor.checks import gpu
from support.planted_host import H200, PlantedHost

CHECKS = {check.id: check for check in gpu.CHECKS}
# name, capability, driver, clock, top clock, load, power, reasons
WORKING = "NVIDIA GB10, 12.1, 580.95.05, 2405, 3003, 96, 71.2, 0x0000000000000004"


@pytest.fixture
def planted(tmp_path):
    host = PlantedHost(tmp_path)
    install(host, "nvidia_cutlass_dsl-4.4.2", "flashinfer_python-0.6.14")
    return host


def install(host: PlantedHost, *packages: str) -> None:
    for name in packages:
        folder = host.root / f"usr/local/lib/python3.12/dist-packages/{name}.dist-info"
        folder.mkdir(parents=True)


def verdict(planted: PlantedHost, identity: str, line: str) -> str:
    planted.program("nvidia-smi", f"echo '{line}'")
    return CHECKS[identity].run(planted.gather()).verdict


@pytest.mark.parametrize("identity", CHECKS)
def test_clean_under_load(planted, identity):
    assert verdict(planted, identity, WORKING) == "CLEAN"


@pytest.mark.parametrize("identity", CHECKS)
def test_no_driver(planted, identity):
    (planted.root / "usr/bin/nvidia-smi").unlink()
    assert CHECKS[identity].run(planted.gather()).verdict == "NOT CHECKED"


@pytest.mark.parametrize(
    ("identity", "line", "expected"),
    [
        ("clocks-stuck", WORKING.replace("2405", "799"), "PROBLEM"),
        ("clocks-stuck", WORKING.replace(" 96", " 0"), "INCONCLUSIVE"),
        ("clocks-stuck", WORKING.replace("2405", "[N/A]"), "INCONCLUSIVE"),
        ("clocks-held-down", WORKING.replace("04", "44"), "PROBLEM"),
        ("clocks-held-down", WORKING.replace("04", "08"), "PROBLEM"),
        ("busy-without-power", WORKING.replace("71.2", "19.5"), "PROBLEM"),
        ("busy-without-power", WORKING.replace("71.2", "[N/A]"), "INCONCLUSIVE"),
        ("busy-without-power", H200, "NOT CHECKED"),
        ("libraries-before-sm12x", H200, "NOT CHECKED"),
    ],
)
def test_planted_answers(planted, identity, line, expected):
    assert verdict(planted, identity, line) == expected


@pytest.mark.parametrize("old", ["nvidia_cutlass_dsl-4.2.1", "flashinfer_python-0.6.9"])
def test_old_libraries(tmp_path, old):
    host = PlantedHost(tmp_path)
    assert verdict(host, "libraries-before-sm12x", WORKING) == "NOT CHECKED"
    install(host, old)
    assert verdict(host, "libraries-before-sm12x", WORKING) == "PROBLEM"

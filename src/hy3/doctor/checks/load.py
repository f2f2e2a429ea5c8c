"""The GPU while it works: clocks, power and rates of a run of ``gpu_load.py``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from hy3.doctor.check import CannotTell, Check, Finding, clean, inconclusive, problem
from hy3.doctor.checks.gpu import held_down_by
from hy3.doctor.host import Host
from hy3.doctor.process import engines
from hy3.doctor.software import Gpu, gpus, parse_gpu
from hy3.errors import EnvironmentFault
from hy3.hardware.device import Device
from hy3.hardware.probe import device_named

# A stuck GB10 shows 695 to 890 of 3003 MHz, and one capped on purpose 2150.
_LEAST_CLOCK = 0.5
# A GB10 that works draws 60 W and more, a stuck one 19.5 W at full load; of a card, half its limit.
_LEAST_UNIFIED_W = 25
_LEAST_OF_LIMIT = 0.3
# Of the table's figures. A sound GB10 reads at 85 % of its bandwidth, and at 30 % of that in its
# hidden slow state.
_BAD_SHARE, _LOW_SHARE = 0.4, 0.55
_START_S = 120  # for importing torch and making a context
_BESIDE_S = 10  # for each device: its memory, and settling


@dataclass(frozen=True)
class Worked:
    """One device before, during and after its work, and the rates that it reached."""

    before: Gpu
    during: tuple[Gpu, ...]
    after: Gpu
    flops: float
    read_bytes_s: float

    @property
    def device(self) -> Device | None:
        """Its entry in devices.toml."""
        return device_named(self.before.name)

    def shown(self, value: Callable[[Gpu], float | None], unit: str) -> str:
        """Before, the median during, and after."""
        median = self.median(value)
        parts = (value(self.before), median, value(self.after))
        told = ("N/A" if part is None else f"{part:.0f}" for part in parts)
        return f"{self.before.name}: {' - '.join(told)} {unit} before, at work and after"

    def median(self, value: Callable[[Gpu], float | None]) -> float | None:
        """Of the readings at work; None where the driver does not tell."""
        known = [each for gpu in self.during if (each := value(gpu)) is not None]
        return statistics.median(known) if known else None


@dataclass(frozen=True)
class Load:
    """A run on one machine, or why there was none."""

    seconds: float
    result: tuple[Worked, ...] | CannotTell

    @property
    def devices(self) -> tuple[Worked, ...]:
        """What was seen of each device.

        Raises:
            CannotTell: there was no run.
        """
        if isinstance(self.result, CannotTell):
            raise self.result
        return self.result


def run_load(host: Host, python: tuple[str, ...], seconds: float) -> Load:
    """Work every device of a machine, unless it has none or they serve; 0 seconds: not at all."""
    try:
        return Load(seconds, _run(host, python, seconds))
    except CannotTell as reason:
        return Load(seconds, reason)


def _run(host: Host, python: tuple[str, ...], seconds: float) -> tuple[Worked, ...]:
    if not seconds:
        raise CannotTell("NOT CHECKED", "not asked for: --gpu-load 20 works each GPU for 20 s")
    count = len(gpus(host))
    if not count:
        raise CannotTell("NOT CHECKED", "no NVIDIA driver answers here")
    if engines(host.processes):
        raise CannotTell("NOT CHECKED", "an engine is running: stop it first")
    script = resources.files("hy3.doctor").joinpath("gpu_load.py").read_bytes()
    allowed_s = _START_S + count * (seconds + _BESIDE_S)
    try:
        said = host.node.run(*python, "-", f"{seconds:g}", send=script, timeout_s=allowed_s)
        worked = tuple(map(_worked, json.loads(said.splitlines()[-1])["devices"]))
    except (EnvironmentFault, IndexError, ValueError) as error:
        reason = f"the load did not run ({error}): --engine-python names a Python with torch"
        raise CannotTell("INCONCLUSIVE", reason) from error
    if len(worked) < count:
        raise CannotTell("INCONCLUSIVE", f"that Python works {len(worked)} of {count} devices")
    return worked


def _worked(said: dict[str, Any]) -> Worked:
    return Worked(
        before=parse_gpu(said["before"]),
        during=tuple(map(parse_gpu, said["during"])),
        after=parse_gpu(said["after"]),
        flops=said["flops"],
        read_bytes_s=said["read_bytes_s"],
    )


def clocks_under_load(load: Load) -> Finding:
    """The clocks at work beside the highest that the device has."""
    shown = []
    for each in load.devices:
        clock, top = each.median(lambda gpu: gpu.clock_mhz), each.before.top_clock_mhz
        if clock is None or top is None:
            return inconclusive(f"the driver does not tell the clocks of {each.before.name}")
        shown.append(f"{each.shown(lambda gpu: gpu.clock_mhz, 'MHz')}, {top:.0f} at most")
        if clock < top * _LEAST_CLOCK:
            return problem(
                shown[-1],
                "take the power cable off for a minute: a reboot does not clear this state",
            )
    return clean("; ".join(shown))


def limits_under_load(load: Load) -> Finding:
    """What the driver says held the clocks down at any moment of the work."""
    for each in load.devices:
        reasons = {reason for gpu in each.during for reason in held_down_by(gpu)}
        if reasons:
            return problem(
                f"{each.before.name} at work is held down by {', '.join(sorted(reasons))}",
                "cool it, or cap the clocks below what trips it",
                ("sudo", "nvidia-smi", "-lgc", "200,2150"),
            )
    return clean(f"neither heat nor a power brake in {load.seconds:g} s of work")


def power_under_load(load: Load) -> Finding:
    """Power at work: a device that draws little does little, whatever its load says."""
    shown = []
    for each in load.devices:
        power, limit = each.median(lambda gpu: gpu.power_w), each.before.power_limit_w
        least = _LEAST_UNIFIED_W if each.before.unified else (limit or 0) * _LEAST_OF_LIMIT
        if power is None or not least:
            return inconclusive(f"the driver does not tell the power of {each.before.name}")
        shown.append(each.shown(lambda gpu: gpu.power_w, "W"))
        if power < least:
            return problem(
                f"{shown[-1]}; at work {least:.0f} W and more are usual",
                "take the power cable off for a minute, and use the supply that came with it",
            )
    return clean("; ".join(shown))


def speed_under_load(load: Load) -> Finding:
    """Arithmetic and reading beside the table of devices."""
    shown, least = [], 1.0
    for each in load.devices:
        device = each.device
        if device is None:
            return inconclusive(f"{each.before.name} is not in the table of devices")
        shares = (each.flops / device.flops, each.read_bytes_s / device.bandwidth_bytes_s)
        shown.append(
            f"{each.before.name}: {each.flops / 1e12:.0f} TFLOPS ({shares[0]:.0%} of the table), "
            f"reads {each.read_bytes_s / 1e9:.0f} GB/s ({shares[1]:.0%})"
        )
        least = min(least, *shares)
    fix = (
        "compare with the other node; GB10 has a slow state that the driver does not show: "
        "take the power cable off for a minute"
    )
    if least < _BAD_SHARE:
        return problem("; ".join(shown), fix)
    if least < _LOW_SHARE:
        return inconclusive("; ".join(shown), fix)
    return clean("; ".join(shown))


_SLOW_STATE = "https://github.com/tonyd2wild/DeepSeek-V4.1-Flash-vLLM-DGX-Spark/issues/1"
CHECKS: tuple[Check[Load], ...] = (
    Check(
        "clocks-under-load",
        "slows",
        "the device works at a fraction of its clock",
        "https://github.com/hasso5703/dgx-spark-qwen38/issues/8",
        clocks_under_load,
    ),
    Check(
        "limits-under-load",
        "slows",
        "heat or a power brake holds the device down while it works",
        "https://github.com/eugr/spark-vllm-docker",
        limits_under_load,
    ),
    Check(
        "power-under-load",
        "slows",
        "the device draws too little power to be working",
        "https://github.com/Blackwellboy/model-serving-minefield",
        power_under_load,
    ),
    Check(
        "speed-under-load",
        "slows",
        "the device computes or reads at a fraction of what it can",
        _SLOW_STATE,
        speed_under_load,
    ),
)

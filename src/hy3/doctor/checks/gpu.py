"""What the driver says of the devices now, and libraries that do not know them."""

from __future__ import annotations

from hy3.doctor.check import CannotTell, Check, Finding, clean, inconclusive, not_checked, problem
from hy3.doctor.engine_matrix import version_key
from hy3.doctor.host import Host
from hy3.doctor.software import Gpu, gpus, package_versions

_BUSY_PERCENT = 80
_SPIN_POWER_W = 25
# nvmlClocksEventReason: thermal and power brakes; the ordinary power cap is not among them.
_HELD = {0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}
_FIRST_FOR_SM12X = {"nvidia_cutlass_dsl": "4.4", "flashinfer_python": "0.6.14"}


def _need_gpus(host: Host) -> list[Gpu]:
    found = gpus(host)
    if not found:
        raise CannotTell("NOT CHECKED", "no NVIDIA driver answers here")
    return found


def clocks_stuck(host: Host) -> Finding:
    """Clocks far below their top while the device is busy."""
    for gpu in _need_gpus(host):
        if gpu.clock_mhz is None or gpu.top_clock_mhz is None:
            return inconclusive(f"the driver does not tell the clocks of {gpu.name}")
        evidence = f"{gpu.name}: {gpu.clock_mhz:.0f} of {gpu.top_clock_mhz:.0f} MHz"
        if (gpu.busy_percent or 0) < _BUSY_PERCENT:
            return inconclusive(f"{evidence}, idle: --gpu-load 20 looks while it works")
        if gpu.clock_mhz < gpu.top_clock_mhz / 2:
            return problem(
                f"{evidence} at {gpu.busy_percent:.0f} % load",
                "take the power cable off for a minute: a reboot does not clear this state",
            )
    return clean("the clocks are up under load")


def clocks_held_down(host: Host) -> Finding:
    """The driver's own reasons for low clocks."""
    for gpu in _need_gpus(host):
        reasons = held_down_by(gpu)
        if reasons:
            return problem(
                f"{gpu.name} is held down by {', '.join(reasons)}",
                "cool it, or cap the clocks below what trips it",
                ("sudo", "nvidia-smi", "-lgc", "200,2150"),
            )
    return clean("neither heat nor a power brake holds the clocks down")


def held_down_by(gpu: Gpu) -> list[str]:
    """Of what limits the clocks, that which no idle or sound device shows."""
    return [text for bit, text in _HELD.items() if gpu.limits & bit]


def busy_without_power(host: Host) -> Finding:
    """Full load at idle power is a kernel that waits for something that never comes."""
    for gpu in _need_gpus(host):
        if not gpu.unified:
            return not_checked(f"the power of a waiting {gpu.name} is not known here")
        if gpu.busy_percent is None or gpu.power_w is None:
            return inconclusive(f"the driver does not tell load and power of {gpu.name}")
        evidence = f"{gpu.busy_percent:.0f} % load at {gpu.power_w:.0f} W"
        if gpu.busy_percent >= _BUSY_PERCENT and gpu.power_w < _SPIN_POWER_W:
            return problem(
                f"{evidence}: it waits, it does not work",
                "look for a rank that died; stop the engine on every node",
            )
    return clean("load and power fit together")


def libraries_too_old(host: Host) -> Finding:
    """Kernel libraries from before their guards for SM 12.x."""
    if not any(gpu.capability[:1] == (12,) for gpu in _need_gpus(host)):
        return not_checked("no device of compute capability 12 here")
    seen = []
    for package, first in _FIRST_FOR_SM12X.items():
        for where, version in package_versions(host, package).items():
            seen.append(f"{package} {version} ({where})")
            if version_key(version) < version_key(first):
                return problem(
                    f"{seen[-1]} is older than {first}",
                    "take an image with newer libraries, or the Marlin kernels",
                )
    if not seen:
        return not_checked("neither CUTLASS nor FlashInfer is found outside containers")
    return clean(", ".join(seen))


CHECKS = (
    Check(
        "clocks-stuck",
        "slows",
        "the device works at a fraction of its clock",
        "https://github.com/hasso5703/dgx-spark-qwen38/issues/8",
        clocks_stuck,
    ),
    Check(
        "clocks-held-down",
        "slows",
        "heat or power holds the device down; machines have switched off",
        "https://github.com/eugr/spark-vllm-docker",
        clocks_held_down,
    ),
    Check(
        "busy-without-power",
        "stops",
        "the device waits for ever at full load",
        "https://github.com/Blackwellboy/model-serving-minefield",
        busy_without_power,
    ),
    Check(
        "libraries-before-sm12x",
        "stops",
        "NVFP4 kernels end in an illegal instruction or NaN",
        "https://github.com/vllm-project/vllm/issues/38423",
        libraries_too_old,
    ),
)

"""What this machine is, asked of the driver: its devices and the memory that is free now."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from hy3.errors import EnvironmentFault
from hy3.hardware.device import GIB, MIB, Device, Hardware, load_devices
from hy3.hardware.memory import available_bytes

_QUERY = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,memory.free",
    "--format=csv,noheader,nounits",
)
# The words in the driver's name of each device of the table.
_NAMES = {
    "GB10": "gb10",
    "RTX PRO 6000": "rtx-pro-6000",
    "RTX 5090": "rtx-5090",
    "RTX 4090": "rtx-4090",
    "RTX 3090": "rtx-3090",
    "L40S": "l40s",
    "A100": "a100",
    "H100": "h100",
    "H200": "h200",
    "B200": "b200",
    "B300": "b300",
}
# The same words name slower devices too.
_OTHERS = re.compile(r"\bLaptop\b|\bH100 PCIe\b")
# The driver's figure and CUDA's are less than 1 % apart; an A100 of 40 GB is not one of 80.
_SAME_MEMORY = 0.05


@dataclass(frozen=True)
class Probe:
    """The machine, and the free memory of its fullest device."""

    hardware: Hardware
    free_bytes: int


def ask_driver() -> str:
    """The driver's answer, a line for each device; EnvironmentFault when there is none."""
    if shutil.which(_QUERY[0]) is None:
        raise _fault("no nvidia-smi is installed")
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=20, check=True)
    except subprocess.CalledProcessError as error:
        said = (error.stdout + error.stderr).strip().splitlines() or [f"exit {error.returncode}"]
        raise _fault(f"nvidia-smi fails ({said[0]})") from error
    except (subprocess.SubprocessError, OSError) as error:
        raise _fault(f"nvidia-smi fails ({error})") from error
    return done.stdout


def probe_hardware(
    ask: Callable[[], str] = ask_driver, available: Callable[[], int] = available_bytes
) -> Probe:
    """Recognise the devices; on unified memory what is free is the machine's available memory."""
    lines = [line.rsplit(",", 2) for line in ask().splitlines() if line.strip()]
    if not lines:
        raise _fault("nvidia-smi names no device")
    devices = {device.name: device for device in (_recognise(line[0]) for line in lines)}
    if len(devices) > 1:
        raise _fault(f"the machine mixes {' and '.join(devices)}")
    device = next(iter(devices.values()))
    # Of unified memory the driver answers N/A.
    free = available() if device.unified else min(_free_bytes(line, device) for line in lines)
    return Probe(Hardware(device, 1, len(lines)), free)


def _free_bytes(line: list[str], device: Device) -> int:
    """Of one device that is what the table takes it for."""
    try:
        total, free = (int(part) * MIB for part in line[1:])
    except ValueError as error:
        raise _fault(f"nvidia-smi does not say how much memory {line[0]!r} has") from error
    if abs(total / device.visible_bytes - 1) > _SAME_MEMORY:
        raise _fault(
            f"{line[0]!r} has {total / GIB:.1f} GiB, the {device.label} of the table of devices "
            f"{device.visible_bytes / GIB:.1f}"
        )
    return free


def device_named(name: str) -> Device | None:
    """The entry of the table for a name that the driver gives."""
    if _OTHERS.search(name):
        return None
    found = (key for words, key in _NAMES.items() if re.search(rf"\b{words}\b", name))
    return next((load_devices()[key] for key in found), None)


def _recognise(name: str) -> Device:
    device = device_named(name)
    if device is not None:
        return device
    raise _fault(f"{name.strip()!r} is not in the table of devices")


def _fault(message: str) -> EnvironmentFault:
    return EnvironmentFault(
        message, hint="name the hardware instead, as --hardware 2xgb10", where="--hardware auto"
    )

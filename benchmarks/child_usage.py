"""A command run in a child process, with what it used."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

SAMPLE_SECONDS = 0.005
_FIELDS = {"VmHWM:": "resident", "RssAnon:": "anonymous"}


@dataclass(frozen=True)
class Usage:
    """What one run took; memory is the child's own, processor time counts its children as well."""

    exit_status: int
    output: str  # stdout and stderr together
    wall_s: float
    cpu_s: float
    peak_resident_bytes: int  # of rusage's maxrss the parent is a part, so this is sampled too
    peak_anonymous_bytes: int  # sampled, so a shorter peak may be missed


def run_measured(command: list[str], log: Path, timeout_s: float) -> Usage:
    """Run a command to its end, or kill it after ``timeout_s``."""
    start = time.monotonic()
    peaks = dict.fromkeys(_FIELDS.values(), 0)
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            _raise_peaks(peaks, process.pid)
            if time.monotonic() - start > timeout_s:
                process.kill()
            time.sleep(SAMPLE_SECONDS)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Usage(
        exit_status=process.returncode,
        output=log.read_text(errors="replace"),
        wall_s=round(time.monotonic() - start, 2),
        cpu_s=round(usage.ru_utime + usage.ru_stime, 2),
        peak_resident_bytes=peaks["resident"],
        peak_anonymous_bytes=peaks["anonymous"],
    )


def _raise_peaks(peaks: dict[str, int], pid: int) -> None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # ended in between
        return
    for line in lines:
        field, _, rest = line.partition("\t")
        if field in _FIELDS:
            peaks[_FIELDS[field]] = max(peaks[_FIELDS[field]], int(rest.split()[0]) * 1024)

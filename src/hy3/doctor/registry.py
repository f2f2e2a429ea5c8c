"""Every check that there is, in the order in which they are shown."""

from __future__ import annotations

from hy3.doctor.check import Check
from hy3.doctor.checks import memory, nccl
from hy3.doctor.host import Host

HOST_CHECKS: tuple[Check[Host], ...] = (*memory.CHECKS, *nccl.CHECKS)

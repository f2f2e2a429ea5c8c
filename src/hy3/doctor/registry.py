"""Every check that there is, in the order in which they are shown."""

from __future__ import annotations

from hy3.doctor.check import Check
from hy3.doctor.checks import gpu, memory, nccl, rdma, session
from hy3.doctor.checks.nodes import NODE_CHECKS, Hosts
from hy3.doctor.host import Host

HOST_CHECKS: tuple[Check[Host], ...] = (
    *memory.CHECKS,
    *session.CHECKS,
    *gpu.CHECKS,
    *nccl.CHECKS,
    *rdma.CHECKS,
)
BETWEEN_NODES: tuple[Check[Hosts], ...] = NODE_CHECKS

"""Every check that there is, in the order in which they are shown."""

from __future__ import annotations

from hy3.doctor.check import Check
from hy3.doctor.checks import engine, gpu, launch, memory, model, nccl, rdma, session
from hy3.doctor.checks.drift import CHECKS as WATCH_CHECKS
from hy3.doctor.checks.dry_load import CHECKS as DRY_LOAD_CHECKS
from hy3.doctor.checks.load import CHECKS as LOAD_CHECKS
from hy3.doctor.checks.nodes import NODE_CHECKS, Hosts
from hy3.doctor.fabric import FABRIC_CHECKS
from hy3.doctor.host import Host
from hy3.doctor.model_case import ModelCase

HOST_CHECKS: tuple[Check[Host], ...] = (
    *memory.CHECKS,
    *session.CHECKS,
    *launch.CHECKS,
    *gpu.CHECKS,
    *nccl.CHECKS,
    *rdma.CHECKS,
)
BETWEEN_NODES: tuple[Check[Hosts], ...] = NODE_CHECKS
MODEL_CHECKS: tuple[Check[ModelCase], ...] = (*model.CHECKS, *engine.CHECKS)

__all__ = [
    "BETWEEN_NODES",
    "DRY_LOAD_CHECKS",
    "FABRIC_CHECKS",
    "HOST_CHECKS",
    "LOAD_CHECKS",
    "MODEL_CHECKS",
    "WATCH_CHECKS",
]

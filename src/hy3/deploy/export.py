"""A launch as files that other tools run: Docker Compose, or a systemd unit, one for each node.

Nothing restarts by itself: a configuration that has killed a machine would kill it again at boot.
"""

from __future__ import annotations

import json
import re
from typing import Any

from hy3.deploy.engine_command import Launch, engine_command, environment
from hy3.hardware.device import Hardware
from hy3.plan.settings import Settings

# The image is named by whoever starts it, by its digest: a floating tag changes behaviour.
_IMAGE = "${HY3_ENGINE_IMAGE:?name the engine's image by its digest}"
_START_SECONDS = 1800  # loads of ten to fifteen minutes are normal
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def export_compose(
    settings: Settings, hardware: Hardware, utilization: float, launch: Launch
) -> dict[str, str]:
    """File name -> a Compose file of node i."""
    return {
        f"compose.node{rank}.yaml": _yaml(
            {"services": {"engine": _service(settings, hardware, utilization, launch, rank)}}
        )
        for rank in range(hardware.used_by(settings.ranks).nodes)
    }


def export_systemd(
    settings: Settings, hardware: Hardware, utilization: float, launch: Launch
) -> dict[str, str]:
    """File name -> a unit of node i; the engine's command must be on the unit's PATH."""
    return {
        f"hy3-engine.node{rank}.service": _unit(settings, hardware, utilization, launch, rank)
        for rank in range(hardware.used_by(settings.ranks).nodes)
    }


def _service(
    settings: Settings, hardware: Hardware, utilization: float, launch: Launch, rank: int
) -> dict[str, Any]:
    gpus = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    model = _literal(launch.model)
    service: dict[str, Any] = {
        "image": _IMAGE,
        "entrypoint": [],
        "command": [
            _literal(word) for word in engine_command(settings, hardware, utilization, launch, rank)
        ],
        "network_mode": "host",
        "ipc": "host",
        "ulimits": {"memlock": -1, "nofile": 1048576},
        # In long form: a path may hold colons, and one that is missing is not made.
        "volumes": [{"type": "bind", "source": model, "target": model, "read_only": True}],
        "deploy": {"resources": {"reservations": {"devices": [gpus]}}},
        "restart": "no",
    }
    variables = environment(settings, hardware, launch, rank)
    if variables:
        service["environment"] = variables
    if settings.ranks > hardware.per_node:
        # Without it NCCL falls back to sockets without a word.
        service["devices"] = ["/dev/infiniband:/dev/infiniband"]
    if rank == 0:
        service["healthcheck"] = {
            "test": ["CMD", "curl", "-fsS", f"http://{launch.host}:{launch.port}/health"],
            "interval": "30s",
            "start_period": f"{_START_SECONDS}s",
        }
    return service


def _unit(
    settings: Settings, hardware: Hardware, utilization: float, launch: Launch, rank: int
) -> str:
    command = engine_command(settings, hardware, utilization, launch, rank)
    lines = [
        "[Unit]",
        f"Description=Hy3 engine ({settings.engine}), node {rank}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart=/usr/bin/env {' '.join(map(_quoted, command))}",
    ]
    variables = environment(settings, hardware, launch, rank)
    lines += [f"Environment={_quoted(f'{key}={value}')}" for key, value in variables.items()]
    lines += [
        "LimitMEMLOCK=infinity",
        "LimitNOFILE=1048576",
        f"TimeoutStartSec={_START_SECONDS}",
        "TimeoutStopSec=60",
        "KillMode=mixed",
        "Restart=no",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _literal(word: str) -> str:
    """A word that Compose takes as it is: no variable is looked up in it."""
    return word.replace("$", "$$")


def _quoted(word: str) -> str:
    """One word of a unit's command line: specifiers and variables are taken literally."""
    word = word.replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _yaml(value: Any, indent: int = 0) -> str:
    """Maps in block form, everything else as JSON, which YAML contains."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value)
    lines = []
    for key, item in value.items():
        nested = isinstance(item, dict) and bool(item)
        text = _yaml(item, indent + 2)
        lines.append(f"{' ' * indent}{key}:{chr(10) if nested else ' '}{text.rstrip(chr(10))}")
    return "\n".join(lines) + "\n"

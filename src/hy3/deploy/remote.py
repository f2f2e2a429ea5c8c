"""A node behind ssh: one command at a time, its arguments never parsed by a second shell."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass

from hy3.errors import EnvironmentFault

_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")


@dataclass(frozen=True)
class Remote:
    """``node`` as ssh knows it; ``ssh`` is the program with its own options."""

    node: str
    ssh: tuple[str, ...] = ("ssh",)

    @property
    def shell(self) -> list[str]:
        """What rsync is given as its remote shell."""
        return [*self.ssh, *_OPTIONS]

    def run(self, *command: str, send: bytes = b"", timeout_s: float = 60) -> str:
        """The command's output; EnvironmentFault when the node cannot be reached or it fails."""
        # ssh joins its arguments with spaces and a shell reads them again: quoted once, here.
        full = [*self.shell, self.node, shlex.join(command)]
        try:
            done = subprocess.run(full, input=send, capture_output=True, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise self._fault(f"does not answer within {timeout_s:.0f} s") from error
        except OSError as error:
            raise self._fault(f"cannot be reached ({error.strerror}: {full[0]})") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            last = said[-1] if said else f"exit {done.returncode}"
            raise self._fault(f"fails at {command[0]!r} ({last})")
        return done.stdout.decode(errors="replace")

    def _fault(self, message: str) -> EnvironmentFault:
        return EnvironmentFault(
            message, hint=f"`ssh {self.node} true` must work without a password", where=self.node
        )

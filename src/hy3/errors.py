"""The error family. Each error says what and where in one line and what to do in another.

The class decides the exit code: a bad input is 2, a fault of the machine is 3, a check that
failed is 1. Internal invariants use ``assert`` and are bugs when they fire.
"""

from __future__ import annotations


class Hy3Error(Exception):
    """Base of every error shown to a user.

    Args:
        message: what happened, one line, without a trailing full stop.
        hint: what to do about it, one line.
        where: the file, tensor, option or address concerned; may be empty.
    """

    kind = "error"
    exit_code = 1

    def __init__(self, message: str, hint: str, where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    def as_json(self) -> dict[str, dict[str, str]]:
        """The form printed on stdout under ``--json``."""
        return {
            "error": {
                "kind": self.kind,
                "message": self.message,
                "hint": self.hint,
                "where": self.where,
            }
        }


class InputError(Hy3Error):
    """A bad flag, path or configuration, or a corrupt or foreign file (exit 2)."""

    kind = "input"
    exit_code = 2


class EnvironmentFault(Hy3Error):
    """Memory, disk, port, network, or a missing extra (exit 3)."""

    kind = "environment"
    exit_code = 3


class Interrupted(Hy3Error):
    """The user pressed Ctrl-C (exit 130)."""

    kind = "interrupted"
    exit_code = 130


class Terminated(Interrupted):
    """The process was asked to end by SIGTERM (exit 143, what a shell makes of the signal)."""

    exit_code = 143


class CheckFailed(Hy3Error):
    """A verification or evaluation ran and found a failure (exit 1)."""

    kind = "check"
    exit_code = 1

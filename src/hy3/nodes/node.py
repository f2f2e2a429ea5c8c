"""``Node``: this machine, or one behind ssh; one command at a time, read by no second shell."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass

from hy3.errors import EnvironmentFault, InputError

# BatchMode: a question for a password would wait for ever.
_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")
_OWN_FAILURE = 255  # ssh's exit status when the fault is its own and not the command's
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@%-]*")
_SHOWN = 80  # characters of a command in a hint
LOCAL = "localhost"


@dataclass(frozen=True)
class Node:
    """``address`` as ssh knows it, None for this machine; ``ssh``: the program with its options."""

    address: str | None = None
    ssh: tuple[str, ...] = ("ssh",)

    @property
    def name(self) -> str:
        """For people."""
        return self.address or "here"

    @property
    def shell(self) -> tuple[str, ...]:
        """ssh with options, for programs that are given a remote shell."""
        return (*self.ssh, *_OPTIONS)

    def command(self, *words: str) -> tuple[str, ...]:
        """The arguments that run a command there, without a terminal; stdin goes along."""
        return self._behind(self.shell, words)

    def command_that_asks(self, *words: str) -> tuple[str, ...]:
        """The same with a terminal, for the question of sudo."""
        return self._behind((*self.ssh, "-t"), words)

    def _behind(self, shell: tuple[str, ...], words: tuple[str, ...]) -> tuple[str, ...]:
        if self.address is None:
            return words
        # ssh joins its arguments with spaces and a shell reads them again: quoted once, here.
        return (*shell, "--", self.address, shlex.join(words))

    def run(self, *words: str, send: bytes = b"", timeout_s: float = 60) -> str:
        """The command's output.

        Raises:
            EnvironmentFault: the node cannot be reached, or the command fails or takes too long.
        """
        full = self.command(*words)
        try:
            done = subprocess.run(full, input=send, capture_output=True, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise self._fault(f"does not answer within {timeout_s:.0f} s") from error
        except OSError as error:
            raise self._fault(f"{full[0]} cannot be started ({error.strerror})") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            last = said[-1] if said else f"exit {done.returncode}"
            if self.address is not None and done.returncode == _OWN_FAILURE:
                raise self._fault(f"cannot be reached ({last})")
            raise EnvironmentFault(
                f"{words[0]} fails there ({last})",
                hint=f"see what `{shlex.join(words)[:_SHOWN]}` says there",
                where=self.name,
            )
        return done.stdout.decode(errors="replace")

    def _fault(self, message: str) -> EnvironmentFault:
        hint = "it must be installed, and on PATH"
        if self.address is not None:
            hint = f"`ssh {self.address} true` must work, and ask for nothing"
        return EnvironmentFault(message, hint=hint, where=self.name)


HERE = Node()


def parse_names(text: str) -> tuple[str, ...]:
    """``a,b`` as typed.

    Raises:
        InputError: a name that ssh could take for something else, or one that comes twice.
    """
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if not _NAME.fullmatch(name):
            raise InputError(
                f"{name!r} is no name of a machine",
                hint="name machines as ssh knows them, as --nodes spark1,spark2",
                where="--nodes",
            )
    if len(set(names)) < len(names):
        raise InputError("a machine comes twice", hint="name each once", where="--nodes")
    return names

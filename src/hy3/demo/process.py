"""The project's own commands as processes, run as a person would run them.

Nothing is taken on trust but the exit status and the JSON that the command prints.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from hy3.errors import CheckFailed

COMMAND_TIMEOUT_S = 120.0
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 40.0


def run_command(arguments: Sequence[str], statuses: Sequence[int] = (0,)) -> dict[str, Any]:
    """Run ``hy3 ARGUMENTS --json`` to its end and return what it prints.

    Raises CheckFailed when it prints no object or ends with a status other than ``statuses``.
    """
    shown = " ".join(["hy3", *arguments])
    try:
        done = subprocess.run(
            [*_python(), *arguments, "--json", "--quiet"],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise CheckFailed(
            f"did not end in {COMMAND_TIMEOUT_S:.0f} s", hint=f"run it by hand: {shown}"
        ) from error
    result = _last_object(done.stdout)
    if done.returncode not in statuses or result is None:
        raise CheckFailed(
            f"exit {done.returncode}: {_complaint(result, done.stderr)}",
            hint=f"run it by hand: {shown}",
        )
    return result


class ServeProcess:
    """``hy3 serve MODEL`` on a free port, a context manager; ``url`` holds once it is entered."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = ["serve", *arguments, "--port", "0"]
        self._process: subprocess.Popen[str] | None = None
        self._log: list[str] = []
        self.url = ""

    def __enter__(self) -> ServeProcess:
        self._process = subprocess.Popen(
            [*_python(), *self._arguments, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()
        threading.Thread(target=self._read_log, daemon=True).start()
        try:
            line = lines.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            line = None
        started = json.loads(line) if line and line.startswith("{") else {}
        if "url" not in started:
            self._kill()
            complaint = _complaint(started, "\n".join(self._log[-5:]))
            raise CheckFailed(f"the server did not start: {complaint}", hint=self._hint())
        self.url = started["url"]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kill()

    def stop(self) -> None:
        """Ask it to drain and end; raises CheckFailed unless it ends by itself with status 0."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise CheckFailed("the server did not stop when asked", hint=self._hint()) from error
        if status:
            raise CheckFailed(f"the server ended with status {status}", hint=self._hint())

    def _hint(self) -> str:
        return f"run it by hand: {' '.join(['hy3', *self._arguments])}"

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _read(self, lines: queue.Queue[str | None]) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            lines.put(line.strip())
        lines.put(None)

    def _read_log(self) -> None:
        """Keeps the pipe empty, and what was said for the case of a failure."""
        assert self._process is not None and self._process.stderr is not None
        self._log.extend(line.rstrip() for line in self._process.stderr)


def _python() -> list[str]:
    return [sys.executable, "-m", "hy3"]


def _last_object(text: str) -> dict[str, Any] | None:
    lines = text.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _complaint(result: dict[str, Any] | None, log: str) -> str:
    error = (result or {}).get("error")
    if error:
        return " ".join(part for part in (error["where"], error["message"]) if part)
    return log.strip().splitlines()[-1] if log.strip() else "it said nothing"

"""What one server takes on at most.

``docs/serving.md`` prints the table of these limits.
"""

from __future__ import annotations

from dataclasses import dataclass

from hy3.server.errors import ApiError

MAX_BODY_BYTES = 8 * 1024**2
RETRY_AFTER_SECONDS = 1


@dataclass(frozen=True)
class Limits:
    """Bounds of one server; a request that exceeds one gets the error named beside it."""

    max_body_bytes: int = MAX_BODY_BYTES  # 413
    max_running: int = 8  # sequences that the engine decodes at once
    max_waiting: int = 64  # sequences that queue for a place: 429
    request_seconds: float = 3600.0  # 408, or an error event in a stream
    keep_alive_seconds: float = 15.0  # silence of a stream before a comment is sent
    drain_seconds: int = 30  # what running requests get when the server is told to stop


class Admission:
    """Counts the sequences between arrival and end, so that a full queue answers at once."""

    def __init__(self, limits: Limits) -> None:
        self.capacity = limits.max_running + limits.max_waiting
        self.open = 0

    def admit(self, sequences: int) -> None:
        """Take places; raises a 429, or a 400 if so many can never be taken."""
        if sequences > self.capacity:
            raise ApiError(
                400, "too_many_choices", f"{sequences} sequences; at most {self.capacity} fit", "n"
            )
        if self.open + sequences > self.capacity:
            raise ApiError(
                429,
                "queue_full",
                f"the queue is full ({self.open} sequences of {self.capacity})",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        self.open += sequences

    def release(self, sequences: int) -> None:
        """Give places back."""
        self.open -= sequences
        assert self.open >= 0

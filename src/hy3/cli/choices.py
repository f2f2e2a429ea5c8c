"""Options that take one of some words."""

from __future__ import annotations

from collections.abc import Iterable

from hy3.errors import InputError


def check_choice(option: str, value: str | None, known: Iterable[str]) -> None:
    """InputError unless ``value`` is one of the words, or None for an option that is not given."""
    words = tuple(known)
    if value is not None and value not in words:
        hint = f"known are: {', '.join(words)}"
        raise InputError(f"{value!r} is unknown", hint=hint, where=option)

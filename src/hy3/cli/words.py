"""Commands that are typed as one option, such as ``--ssh "ssh -p 2222"``."""

from __future__ import annotations

import shlex

from hy3.errors import InputError


def command_words(text: str, option: str) -> tuple[str, ...]:
    """The words of a command, as a shell takes them apart; nothing else of it is a shell's.

    Raises:
        InputError: naming ``option``, for an open quote or nothing at all.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(
            f"cannot be read as a command ({error})", "close what is quoted", option
        ) from error
    if not words:
        raise InputError("is empty", "name a program", option)
    return words

"""Regular expressions that a foreign config brings: compiled, or refused with the reason."""

from __future__ import annotations

import re

from hy3.checkpoint.strict_json import shown

_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]|[*+?]\??|\{\d*,?\d*\}\??|.", re.DOTALL)
_UNBOUNDED = re.compile(r"[*+]\??|\{\d*,\}\??|\{\d{3,}.*")


class BadPatternError(ValueError):
    """Why a pattern is not used."""


def check_pattern(pattern: str) -> None:
    """Raises BadPatternError unless it compiles and cannot take exponential time.

    Python's matcher tries every way to divide a text between a repeat and a repeat or a choice
    inside it: ``(a+)+`` takes years over a name of fifty letters.
    """
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadPatternError(f"{shown(pattern)} ({error})") from error
    if _repeats_a_repeat(pattern):
        raise BadPatternError(f"{shown(pattern)} (a repeat within a repeat may never end)")


def _repeats_a_repeat(pattern: str) -> bool:
    divisible = [False]  # for each open group: whether its text can be divided in several ways
    closed = False  # the same for the group that has just ended
    for piece in _PIECE.findall(pattern):
        if _UNBOUNDED.fullmatch(piece):
            if closed:
                return True
            divisible[-1] = True
        if piece == "(":
            divisible.append(False)
        elif piece == "|" and len(divisible) > 1:
            divisible[-1] = True
        closed = piece == ")" and divisible[-1]
        if piece == ")" and len(divisible) > 1:
            inner = divisible.pop()
            divisible[-1] = divisible[-1] or inner
    return False

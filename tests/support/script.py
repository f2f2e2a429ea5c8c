"""Turns replies into a chain of tokens in which the last token alone decides the next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Script:
    """``pieces`` are token texts; ``after[text]`` is the token text that follows it."""

    after: dict[str, str] = field(default_factory=dict)
    pieces: list[str] = field(default_factory=list)

    def rest(self, token: str, end: str) -> str:
        """The text that the chain says after ``token``, without ``end``."""
        text = ""
        while (token := self.after.get(token, end)) != end:
            text += token
        return text


def write_script(replies: Mapping[str, str], markers: Sequence[str], end: str) -> Script:
    """Chain each reply behind its prompt tail; every chain runs into ``end``.

    A token can have one successor only. So where a piece of a reply is taken already, the reply
    either joins the chain there, if that goes on with the same text, or takes the piece together
    with its neighbours as one longer token of its own.
    """
    script = Script()
    for tail in replies:
        script.after.setdefault(tail, "")
    for tail, reply in replies.items():
        parts = re.split(f"({'|'.join(map(re.escape, markers))})", reply)
        pieces = [
            piece
            for part in parts
            for piece in ([part] if part in markers else re.findall(r"\s*\S{1,12}|\s+$", part))
        ]
        _chain(script, tail, pieces, end)
    return script


def _chain(script: Script, token: str, pieces: list[str], end: str) -> None:
    finished = {text for text, following in script.after.items() if following}
    while pieces:
        taken = 1
        while (piece := "".join(pieces[:taken])) in script.after:
            if piece in finished and script.rest(piece, end) == "".join(pieces[taken:]):
                script.after[token] = piece
                return
            assert taken < len(pieces), f"the script cannot tell {piece!r} from an earlier one"
            taken += 1
        script.after[token] = token = piece
        script.after[piece] = end
        script.pieces.append(piece)
        pieces = pieces[taken:]
    script.after[token] = end

"""``HubName``: how a model on a hub is spelled, ``hf://org/name@revision``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hy3.errors import InputError

PREFIX = "hf://"
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")


@dataclass(frozen=True)
class HubName:
    """A repository, and the branch, tag or commit asked for; None is the hub's default branch."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{PREFIX}{self.repository}" + (f"@{self.revision}" if self.revision else "")

    def download_command(self, folder: str) -> str:
        """What fetches it into a folder, the revision with it."""
        chosen = f" --revision {self.revision}" if self.revision else ""
        return f"hf download {self.repository}{chosen} --local-dir {folder}"


def parse_hub_name(text: str) -> HubName | None:
    """The name in ``text``; None when it can only be a path.

    ``org/name`` without the prefix reads as a name too: whether a folder of that name exists is
    for the caller to ask first.

    Raises:
        InputError: it begins with ``hf://`` and is no name.
    """
    match = _NAME.fullmatch(text.removeprefix(PREFIX))
    if match:
        return HubName(match[1], match[2])
    if text.startswith(PREFIX):
        raise InputError(
            "is not the name of a model on a hub",
            hint="write hf://org/name or hf://org/name@revision",
            where=text,
        )
    return None

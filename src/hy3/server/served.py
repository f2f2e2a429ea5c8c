"""``ServedModel``: what the endpoints know of the checkpoint besides its weights."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hy3 import __version__
from hy3.chat.markers import Markers, find_marker_suffix
from hy3.chat.template import ChatTemplate, Effort, map_effort
from hy3.chat.tokenizer import Tokenizer
from hy3.checkpoint.index import INDEX_NAME
from hy3.checkpoint.manifest import MANIFEST_NAME
from hy3.checkpoint.model_config import CONFIG_NAME
from hy3.server.defaults import SamplingDefaults, load_defaults
from hy3.server.errors import ApiError

# Any of these changes when the weights do.
_IDENTITY_FILES = (MANIFEST_NAME, CONFIG_NAME, INDEX_NAME)


@dataclass(frozen=True)
class ServedModel:
    """One checkpoint under the name that clients use."""

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate
    markers: Markers
    defaults: SamplingDefaults
    reasoning_effort: Effort | None  # when a request names none; None leaves it to the template
    fingerprint: str
    created: int  # Unix seconds

    def check_name(self, name: str) -> None:
        """Raise OpenAI's 404 unless ``name`` is this model's."""
        if name != self.name:
            raise ApiError(
                404, "model_not_found", f"no model {name!r}; this is {self.name!r}", "model"
            )

    def as_model(self, max_context: int) -> dict[str, Any]:
        """The entry in ``/v1/models``."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "hy3",
            "max_model_len": max_context,
        }


def load_served_model(
    folder: Path, name: str | None = None, reasoning_effort: str | None = None
) -> ServedModel:
    """Read the small files of a checkpoint; every failure is an InputError."""
    return ServedModel(
        name=name or folder.resolve().name,
        tokenizer=Tokenizer(folder),
        template=ChatTemplate(folder),
        markers=Markers(find_marker_suffix(folder) or ""),
        defaults=load_defaults(folder),
        reasoning_effort=None if reasoning_effort is None else map_effort(reasoning_effort),
        fingerprint=_fingerprint(folder),
        created=int(time.time()),
    )


def _fingerprint(folder: Path) -> str:
    """Version and weights in one word, so that an evaluation can tell who answered."""
    digest = hashlib.sha256(__version__.encode())
    for name in _IDENTITY_FILES:
        path = folder / name
        digest.update(path.read_bytes() if path.is_file() else b"")
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
    return f"fp_{digest.hexdigest()[:12]}"

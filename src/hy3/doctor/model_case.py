"""``ModelCase``: a checkpoint and the engine that is to serve it; read once, when first asked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hy3.checkpoint.census import Census, take_census
from hy3.checkpoint.index import Checkpoint, open_checkpoint
from hy3.checkpoint.json_file import read_json_object
from hy3.checkpoint.manifest import read_manifest
from hy3.checkpoint.model_config import CONFIG_NAME, Hy3Config, parse_config
from hy3.checkpoint.quantization_config import QuantizationConfig, parse_quantization_config
from hy3.doctor.engine_matrix import Engine
from hy3.errors import InputError
from hy3.quantize.check_layout import check_layout

_HUB_FOLDER = "models--"


@dataclass(frozen=True)
class ModelCase:
    """``engine`` is None where nobody said which."""

    folder: Path
    engine: Engine | None

    @property
    def name(self) -> str:
        """Of the folder, or of the repository when it lies in a hub's cache."""
        path = self.folder.resolve()
        for part in reversed(path.parts):
            if part.startswith(_HUB_FOLDER):
                return part.removeprefix(_HUB_FOLDER).replace("--", "/")
        return path.name

    @cached_property
    def raw(self) -> dict[str, Any]:
        """config.json as it is."""
        return read_json_object(self.folder / CONFIG_NAME)

    @cached_property
    def config(self) -> Hy3Config:
        """config.json, checked."""
        return parse_config(self.raw, where=str(self.folder / CONFIG_NAME))

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Index and headers."""
        return open_checkpoint(self.folder)

    @cached_property
    def census(self) -> Census:
        """What is stored, and what should be."""
        return take_census(self.checkpoint, self.config)

    @cached_property
    def quantization(self) -> QuantizationConfig | None:
        """The claims of quantization_config."""
        return parse_quantization_config(self.raw)

    @cached_property
    def layout(self) -> dict[str, tuple[str, str, tuple[str, ...]]]:
        """Check of ``hy3 verify`` -> (status, detail, tensors), of those that need no data."""
        manifest = read_manifest(self.folder)
        checks = check_layout(self.folder, self.checkpoint, self.config, self.census, manifest)
        return {check.id: (check.status, check.detail, check.tensors) for check in checks}


def open_case(folder: Path, engine: Engine | None) -> ModelCase:
    """A folder to look at.

    Raises:
        InputError: no checkpoint is there, sound or not.
    """
    if not (folder / CONFIG_NAME).exists():
        raise InputError(
            f"holds no {CONFIG_NAME}",
            hint="name the folder of a checkpoint",
            where=str(folder),
        )
    return ModelCase(folder, engine)

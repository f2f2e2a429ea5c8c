"""The trained model of the repository."""

from __future__ import annotations

from pathlib import Path

TINY = Path(__file__).resolve().parents[2] / "models" / "hy3-tiny"

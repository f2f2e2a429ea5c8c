"""A source, a sound quantized checkpoint of it, and a copy to plant faults in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.quantized import make_quantized
from support.scripted import make_random


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> Path:
    return make_random(tmp_path_factory.mktemp("source") / "model", seed=3, num_experts=4)


@pytest.fixture(scope="session")
def sound(source, tmp_path_factory) -> Path:
    return make_quantized(source, tmp_path_factory.mktemp("sound") / "out")


@pytest.fixture
def out(sound, tmp_path) -> Path:
    return shutil.copytree(sound, tmp_path / "out")

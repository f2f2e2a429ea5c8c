"""What is read of a checkpoint, and whose effort counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hy3.errors import InputError
from hy3.server.chat import render
from hy3.server.schema import ChatBody
from hy3.server.served import load_served_model
from support.scripted import make_random
from support.served_models import random_folder

HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def prompt(server: str | None, **body) -> str:
    served = load_served_model(random_folder(), "m", server)
    return render(ChatBody(**HELLO, **body), None, served)


@pytest.mark.parametrize(
    ("server", "top", "nested", "expected"),
    [
        (None, None, None, "no_think"),
        ("high", None, None, "high"),
        ("high", None, "low", "low"),
        ("high", "none", "low", "no_think"),
        (None, "xhigh", None, "high"),
    ],
)
def test_whose_effort_counts(server, top, nested, expected: str) -> None:
    kwargs = {"reasoning_effort": nested} if nested else None
    text = prompt(server, reasoning_effort=top, chat_template_kwargs=kwargs)
    assert f"reasoning_effort:{expected}" in text
    assert text.endswith("<think:opensource>") == (expected != "no_think")


def test_an_unknown_default_is_refused_at_the_start() -> None:
    with pytest.raises(InputError, match="extreme"):
        load_served_model(random_folder(), "m", "extreme")


def test_the_name_is_the_folders_unless_given(tmp_path: Path) -> None:
    folder = make_random(tmp_path / "my-model")
    assert load_served_model(folder).name == "my-model"
    assert load_served_model(folder, "other").name == "other"


def test_the_fingerprint_follows_the_checkpoint(tmp_path: Path) -> None:
    folder = make_random(tmp_path / "model")
    first = load_served_model(folder).fingerprint
    assert load_served_model(folder).fingerprint == first
    (folder / "hy3_manifest.json").write_text("{}")
    assert load_served_model(folder).fingerprint != first

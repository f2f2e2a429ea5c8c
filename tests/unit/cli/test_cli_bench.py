"""Reading the options of `hy3 bench`."""

from __future__ import annotations

from pathlib import Path

import pytest

from hy3.cli.bench import parse_api, parse_concurrency
from hy3.cli.endpoint import read_api_key
from hy3.errors import InputError


def test_concurrency() -> None:
    assert parse_concurrency("1,6") == (1, 6)
    assert parse_concurrency("4") == (4,)
    for text in ("", "1,,2", "0", "-1", "two"):
        with pytest.raises(InputError, match="list of positive numbers"):
            parse_concurrency(text)


def test_api() -> None:
    assert parse_api("completions") == "completions"
    with pytest.raises(InputError, match="unknown format 'responses'"):
        parse_api("responses")


def test_api_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HY3_API_KEY", raising=False)
    assert read_api_key(None) is None
    monkeypatch.setenv("HY3_API_KEY", "from-environment")
    assert read_api_key(None) == "from-environment"
    file = tmp_path / "keys"
    file.write_text("first\nsecond\n")
    assert read_api_key(file) == "first"
    file.write_text("\n")
    with pytest.raises(InputError, match="holds no key"):
        read_api_key(file)
    with pytest.raises(InputError, match="FileNotFoundError"):
        read_api_key(tmp_path / "none")

"""Suffix discovery: each source alone, their order, and conflicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hy3.chat.markers import Markers, find_marker_suffix, read_marker_suffix
from hy3.errors import InputError


def write(
    folder: Path,
    added: list[str] | None = None,
    vocab: list[str] | None = None,
    config: dict[str, object] | None = None,
) -> Path:
    if added is not None or vocab is not None:
        tokenizer = {
            "added_tokens": [{"id": i, "content": token} for i, token in enumerate(added or [])],
            "model": {"vocab": {token: i for i, token in enumerate(vocab or [])}},
        }
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("suffix", ["", ":opensource", ":6124c78e", ":a.b-c"])
@pytest.mark.parametrize("where", ["added", "vocab"])
def test_vocabulary_names_the_suffix(tmp_path: Path, suffix: str, where: str) -> None:
    tokens = ["a", "<s>", f"<think{suffix}>", f"</tool_calls{suffix}>", "<thinking>"]
    folder = write(tmp_path, **{where: tokens})
    assert find_marker_suffix(folder) == suffix
    assert read_marker_suffix(folder).warnings == []


def test_no_markers_and_no_files(tmp_path: Path) -> None:
    assert find_marker_suffix(tmp_path) is None
    assert find_marker_suffix(write(tmp_path, added=["<s>"], config={"eos_token": "</s>"})) is None


def test_config_key_when_the_vocabulary_is_silent(tmp_path: Path) -> None:
    folder = write(tmp_path, added=["<s>"], config={"token_suffix": ":x"})
    assert find_marker_suffix(folder) == ":x"


@pytest.mark.parametrize(
    ("eos", "suffix"),
    [("<｜hy_eos:y｜>", ":y"), ("<｜hy_eos｜>", ""), ({"content": "<｜hy_eos:z｜>"}, ":z")],
)
def test_eos_token_is_the_last_resort(tmp_path: Path, eos: object, suffix: str) -> None:
    assert find_marker_suffix(write(tmp_path, config={"eos_token": eos})) == suffix


def test_eos_of_the_vocabulary(tmp_path: Path) -> None:
    assert find_marker_suffix(write(tmp_path, added=["<｜hy_eos:q｜>"])) == ":q"


def test_conflicts_are_reported_and_the_vocabulary_wins(tmp_path: Path) -> None:
    config = {"token_suffix": ":b", "eos_token": "<｜hy_eos:c｜>"}
    finding = read_marker_suffix(write(tmp_path, added=["<think:a>"], config=config))
    assert finding.suffix == ":a"
    assert len(finding.warnings) == 2
    assert "':b'" in finding.warnings[0]
    assert "':c'" in finding.warnings[1]


def test_most_frequent_suffix_of_a_mixed_vocabulary(tmp_path: Path) -> None:
    folder = write(tmp_path, added=["<think>", "<think:a>", "</think:a>"])
    finding = read_marker_suffix(folder)
    assert finding.suffix == ":a"
    assert "''" in finding.warnings[0]


def test_broken_file_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        find_marker_suffix(tmp_path)


def test_marker_strings() -> None:
    markers = Markers(":s")
    assert markers.think_close == "</think:s>"
    assert markers.arg_value_open == "<arg_value:s>"
    assert len(set(markers.tool_markup)) == 9
    assert Markers().tool_sep == "<tool_sep>"


@pytest.mark.parametrize(
    "tokenizer",
    [{"added_tokens": 5}, {"added_tokens": ["<think:x>"]}, {"model": [1]}, {"model": {"vocab": 7}}],
)
def test_a_tokenizer_of_another_form_says_nothing(tmp_path: Path, tokenizer: object) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert find_marker_suffix(tmp_path) is None

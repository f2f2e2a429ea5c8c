"""Lists of names are cut for people, and one rule says which words an option takes."""

from __future__ import annotations

import re

import pytest

from hy3.cli.choices import check_choice
from hy3.cli.output import Output
from hy3.errors import InputError


def test_a_long_list_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    output.names("ten:", [str(i) for i in range(10)])
    assert capsys.readouterr().out == "ten:\n" + "".join(f"  {i}\n" for i in range(10))
    output.names("twelve:", [str(i) for i in range(12)])
    assert capsys.readouterr().out.endswith("  9\n  and 2 more; --json lists all\n")
    Output(as_json=True).names("none:", ["x"])
    assert capsys.readouterr().out == ""


def test_words_of_an_option() -> None:
    check_choice("--scales", "exact", ["max", "exact"])
    check_choice("--scales", None, ["max", "exact"])
    with pytest.raises(InputError, match="'Exact' is unknown") as caught:
        check_choice("--scales", "Exact", ["max", "exact"])
    assert (caught.value.where, caught.value.hint) == ("--scales", "known are: max, exact")


def test_a_narrow_terminal_wraps_sentences_and_cuts_no_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    words = ("engine-excludes-draft-head", "12345.6", "seen")
    Output(False, False).table(("check", "tok/s", "what"), [(*words[:2], "seen " * 30)])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 60 and "…" not in "".join(lines)
    cells = [cell.strip() for line in lines for cell in line.split("│")]
    assert all(word in " ".join(cells).split() for word in words)

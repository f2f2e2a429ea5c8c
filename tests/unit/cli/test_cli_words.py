"""Commands that are typed as one option."""

from __future__ import annotations

import pytest

from hy3.cli.words import command_words
from hy3.errors import InputError


def test_words_as_a_shell_takes_them():
    assert command_words("ssh -o 'User a' -p 2222", "--ssh") == (
        "ssh",
        "-o",
        "User a",
        "-p",
        "2222",
    )
    assert command_words("echo $HOME;ls", "--ssh") == ("echo", "$HOME;ls")


@pytest.mark.parametrize("text", ["", "  ", "ssh 'x", 'a "b'])
def test_what_is_no_command(text):
    with pytest.raises(InputError) as caught:
        command_words(text, "--ssh")
    assert caught.value.where == "--ssh"

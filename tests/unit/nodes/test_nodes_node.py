"""Commands to other machines: through one shell, bounded in time, with names that are names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hy3.errors import EnvironmentFault, InputError
from hy3.nodes.node import Node, parse_names


def behind(tmp_path, body: str) -> Node:
    """A node whose ssh does ``body``."""
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return Node("spark2", (str(program), "-p", "2222"))


def test_a_command_survives_the_shell_at_the_other_end():
    words = ("printf", "%s|", "a b", "$HOME", "it's", '{"k": 1}')
    arguments = Node("b").command_that_asks(*words)
    assert arguments[:4] == ("ssh", "-t", "--", "b")
    done = subprocess.run(["sh", "-c", arguments[4]], capture_output=True, text=True)
    assert done.stdout == 'a b|$HOME|it\'s|{"k": 1}|'
    assert Node().command_that_asks(*words) == Node().command(*words) == words


def test_what_is_sent_arrives_and_what_is_said_comes_back(tmp_path):
    node = behind(tmp_path, 'while [ "$1" != -- ]; do shift; done; shift 2; exec sh -c "$1"')
    assert node.run("sh", "-c", "tr a-z A-Z", send=b"hello") == "HELLO"
    assert Node().run("sh", "-c", "tr a-z A-Z", send=b"hello") == "HELLO"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo 'No route to host' >&2; exit 255", "cannot be reached (No route to host)"),
        ("echo 'no such file' >&2; exit 2", "ls fails there (no such file)"),
        ("exit 3", "ls fails there (exit 3)"),
        ("exec sleep 30", "does not answer within 1 s"),
    ],
)
def test_faults_are_one_line(tmp_path, body, words):
    with pytest.raises(EnvironmentFault) as caught:
        behind(tmp_path, body).run("ls", timeout_s=1)
    assert (caught.value.message, caught.value.where) == (words, "spark2")


def test_a_program_that_is_not_there(tmp_path):
    for node in (Node("b", (str(tmp_path / "none"),)), Node()):
        with pytest.raises(EnvironmentFault, match="cannot be started"):
            node.run(str(tmp_path / "none"))


def test_here_no_exit_status_is_sshs():
    with pytest.raises(EnvironmentFault, match="fails there"):
        Node().run(sys.executable, "-c", "raise SystemExit(255)")


def test_names():
    assert parse_names("spark1, user@10.0.0.2") == ("spark1", "user@10.0.0.2")
    for bad in ("-oProxyCommand=x", "a,,b", "a;b", "a,a", ""):
        with pytest.raises(InputError):
            parse_names(bad)

"""``hy3 chat`` against a real socket: one question, a conversation on a terminal, and refusals."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hy3.chat.tools import ToolSet
from hy3.cli.chat import Screen, _obey, read_tools
from hy3.cli.conversation import Conversation
from hy3.server.schema import ChatBody
from support.chat_server import ChatServer, chat_server

COMMAND = [sys.executable, "-m", "hy3", "chat"]
DEADLINE_S = 60.0
ROOT = Path(__file__).resolve().parents[3]
ANSWER = [
    {"role": "assistant", "content": ""},
    {"reasoning": "I think", "reasoning_content": "I think"},
    {"reasoning_content": " hard"},
    {"content": "Grüße"},
    {"content": "!"},
]
CALL = [
    {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "look", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"Rome"}'}}]},
    {"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "time", "arguments": "{}"}}]},
]
TOOLS = [{"type": "function", "function": {"name": "look"}}]


def run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=os.environ | environment,
    )


def test_answer_on_stdout_and_reasoning_on_stderr() -> None:
    with chat_server(ANSWER) as server:
        done = run(server.url, "--message", "Hello?", "--effort", "no_think", "--temperature", "0")
    assert (done.returncode, done.stdout) == (0, "Grüße!\n")
    assert done.stderr == "I think hard\n\n"
    assert server.bodies == [
        {
            "model": "first",
            "messages": [{"role": "user", "content": "Hello?"}],
            "reasoning_effort": "none",
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_question_from_a_pipe() -> None:
    with chat_server(ANSWER) as server:
        done = run(
            server.url, "--quiet", "--system", "Be kind.", "--model", "second", stdin="Why?\n"
        )
    assert (done.stdout, done.stderr) == ("Grüße!\n", "")
    assert server.bodies[0]["model"] == "second"
    assert server.bodies[0]["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Why?\n"},
    ]


def test_json_holds_the_whole_reply(tmp_path: Path) -> None:
    offered = tmp_path / "tools.json"
    offered.write_text(json.dumps(TOOLS))
    with chat_server(ANSWER + CALL, finish="tool_calls") as server:
        done = run(server.url, "-m", "Hi", "--json", "--tools", str(offered))
    assert json.loads(done.stdout) == {
        "schema": "hy3.chat/1",
        "model": "first",
        "reasoning": "I think hard",
        "content": "Grüße!",
        "tool_calls": [
            {"id": "c1", "name": "look", "arguments": '{"city": "Rome"}'},
            {"id": "c2", "name": "time", "arguments": "{}"},
        ],
        "finish_reason": "tool_calls",
        "usage": {"completion_tokens": 3},
    }
    assert done.stderr == ""
    assert server.bodies[0]["tools"] == TOOLS


def test_calls_are_shown_and_a_cut_is_told() -> None:
    with chat_server(CALL, finish="length") as server:
        done = run(server.url, "-m", "Hi")
    assert done.stdout == 'call look({"city": "Rome"})\ncall time({})\n'
    assert "limit of tokens" in done.stderr


@pytest.mark.parametrize(("name", "source"), [("file", True), ("variable", False)])
def test_api_key(tmp_path: Path, name: str, source: bool) -> None:
    path = tmp_path / "key"
    path.write_text("secret\n")
    with chat_server(ANSWER) as server:
        if source:
            run(server.url, "-m", "Hi", "--api-key-file", str(path))
        else:
            run(server.url, "-m", "Hi", HY3_API_KEY="secret")
    assert server.keys == ["Bearer secret"]


def test_no_server_is_a_fault_of_the_environment() -> None:
    done = run("http://127.0.0.1:9/v1", "-m", "Hi", "--json")
    assert done.returncode == 3
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "environment"
    assert "hy3 serve" in error["hint"]
    assert error["where"] == "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [(400, 2, "too long"), (401, 2, "API key"), (404, 2, "too long"), (429, 3, "too long"),
     (500, 3, "too long")],
)  # fmt: skip
def test_refusals_of_the_server(status: int, code: int, said: str) -> None:
    with chat_server((status, "it is too long")) as server:
        done = run(server.url, "-m", "Hi")
    assert done.returncode == code
    assert said in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--effort", "extreme"], "none, no_think, minimal"),
        (["--tools", "/nowhere.json"], "cannot be read"),
        (["--tools", __file__], "cannot be read"),
        (["--max-tokens", "0"], "--max-tokens"),
    ],
)
def test_bad_options(arguments: list[str], said: str) -> None:
    done = run("http://127.0.0.1:9/v1", "-m", "Hi", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


class Terminal:
    """``hy3 chat`` on a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            close_fds=True,
            env=os.environ | {"TERM": "dumb"},
        )
        os.close(slave)
        self._unread = b""

    def type(self, line: str) -> None:
        os.write(self._master, line.encode() + b"\n")

    def read_until(self, wanted: str) -> str:
        """What the terminal shows up to ``wanted``, which must come; the rest is kept."""
        mark, end = wanted.encode(), time.monotonic() + DEADLINE_S
        while mark not in self._unread:
            ready, _, _ = select.select([self._master], [], [], end - time.monotonic())
            assert ready, f"{wanted!r} never came: {self._unread.decode()}"
            self._unread += os.read(self._master, 4096)
        seen, _, self._unread = self._unread.partition(mark)
        return (seen + mark).decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@contextmanager
def conversation(server: ChatServer, *arguments: str) -> Iterator[Terminal]:
    terminal = Terminal(server.url, *arguments)
    try:
        terminal.read_until("> ")
        yield terminal
    finally:
        terminal.close()


def test_conversation_on_a_terminal() -> None:
    with (
        chat_server(ANSWER, (500, "oh no"), [{"content": "\x1b[31mred"}], ANSWER) as server,
        conversation(server) as terminal,
    ):
        terminal.type("one")
        shown = terminal.read_until("!\r\n> ")
        assert "\x1b[2mI think\x1b[0m" in shown
        terminal.type("lost")
        assert "oh no" in terminal.read_until("hint: ")
        terminal.read_until("> ")
        terminal.type("/effort medium")
        assert "(reasoning effort: medium)" in terminal.read_until("> ")
        terminal.type("two")
        shown = terminal.read_until("red")
        assert "\ufffd[31mred" in shown  # shown, not obeyed
        terminal.read_until("> ")
        terminal.type("/clear")
        assert "(forgot 4 messages)" in terminal.read_until("> ")
        terminal.type("three")
        terminal.read_until("!\r\n> ")
        terminal.type("/what")
        assert "(no command /what; " in terminal.read_until("/exit leaves)")
        terminal.type("/exit")
        assert terminal.process.wait(DEADLINE_S) == 0
    sent = [[m["content"] for m in body["messages"]] for body in server.bodies]
    assert sent == [["one"], ["one", "Grüße!", "lost"], ["one", "Grüße!", "two"], ["three"]]
    efforts = [body.get("reasoning_effort") for body in server.bodies]
    assert efforts == [None, None, "medium", "medium"]
    assert server.bodies[2]["messages"][1]["reasoning_content"] == "I think hard"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/clear", "forgot 2 messages; the system message stays"),
        ("/effort", "reasoning effort: as the server has it"),
        ("/effort  no_think", "reasoning effort: none"),
        ("/effort loud", "unknown reasoning_effort 'loud'; use one of none, "),
        ("/effort low high", "no command /effort low high; /effort LEVEL"),
        ("/help", "/effort LEVEL sets"),
        ("/exit now", "no command /exit now; "),
    ],
)
def test_commands_answer_in_one_line(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = Conversation("http://127.0.0.1:9/v1", system="Be kind.")
    talk.messages += [{"role": "user"}, {"role": "assistant"}]
    _obey(line, talk, Screen(show_reasoning=False, silent=False))
    answer = capsys.readouterr().err
    assert answer.startswith(f"({said}") and answer.endswith(")\n") and answer.count("\n") == 1


def test_the_tools_of_the_page_are_read_as_the_server_reads_them(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "chat.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```json\n(.*?)```", page, re.S)
    path = tmp_path / "tools.json"
    path.write_text(example)
    tools = read_tools(path)
    asked = {"model": "m", "messages": [{"role": "user", "content": "?"}], "tools": tools}
    body = ChatBody.model_validate(asked)
    assert body.tools == tools
    call = re.search(r"`call (\w+)\((.*?)\)`", page)
    assert call and ToolSet(tools).may_name(call[1])
    function = tools[0]["function"]
    assert function["name"] == call[1]
    arguments = json.loads(call[2])
    assert set(function["parameters"]["required"]) <= set(arguments)
    assert set(arguments) <= set(function["parameters"]["properties"])


def test_results_of_calls_are_asked_for() -> None:
    with (
        chat_server(CALL, ANSWER, finish="tool_calls") as server,
        conversation(server) as terminal,
    ):
        terminal.type("weather?")
        terminal.read_until("result of look: ")
        terminal.type("sunny")
        terminal.read_until("result of time: ")
        terminal.type("noon")
        terminal.read_until("!\r\n> ")
        os.write(terminal._master, b"\x04")  # end of input
        assert terminal.process.wait(DEADLINE_S) == 0
    user, called, first, second = server.bodies[1]["messages"]
    assert user["content"] == "weather?"
    assert [call["function"]["name"] for call in called["tool_calls"]] == ["look", "time"]
    assert first == {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
    assert second == {"role": "tool", "tool_call_id": "c2", "content": "noon"}


def test_json_on_a_terminal_needs_a_question() -> None:
    terminal = Terminal("http://127.0.0.1:9/v1", "--json")
    try:
        terminal.read_until("--json needs a question")
        assert terminal.process.wait(DEADLINE_S) == 2
    finally:
        terminal.close()

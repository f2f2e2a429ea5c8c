"""``hy3 chat`` with the native engine behind it: reasoning, and a tool call."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.scripted import PLAIN, REASONING, make_scripted
from support.served_models import serve_native

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}


@pytest.fixture(name="url", scope="module")
def _url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = make_scripted(tmp_path_factory.mktemp("chat") / "model")
    with serve_native(folder) as live:
        yield f"{live.url}/v1"


def chat(url: str, *arguments: str) -> dict[str, object]:
    command = [sys.executable, "-m", "hy3", "chat", url, "--json", "--temperature", "0"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_reasoning_and_answer(url: str) -> None:
    reply = chat(url, "-m", "Hi", "--effort", "high")
    assert (reply["reasoning"], reply["content"]) == (REASONING, PLAIN)
    assert reply["finish_reason"] == "stop"
    assert reply["usage"]["completion_tokens"] > 5


def test_tool_call(url: str, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([WEATHER]))
    reply = chat(url, "-m", "Weather?", "--effort", "none", "--tools", str(tools))
    assert reply["content"] is None
    assert reply["finish_reason"] == "tool_calls"
    (call,) = reply["tool_calls"]
    assert (call["name"], json.loads(call["arguments"])) == (
        "get_weather",
        {"city": "Paris", "days": 3},
    )

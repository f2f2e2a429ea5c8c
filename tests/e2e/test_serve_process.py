"""``hy3 serve`` as a process: what it prints, how it ends, what it never logs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest
from typer.testing import CliRunner

from hy3.cli.app import app
from hy3.errors import EnvironmentFault, InputError
from hy3.server.run import listen, url_of
from support.live_server import wait_until
from support.scripted import PLAIN, make_scripted

KEY = "sk-process-secret"
HELLO = [{"role": "user", "content": "Hi"}]
DEADLINE_S = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_scripted(tmp_path_factory.mktemp("serve") / "model")


class Served:
    """One ``hy3 serve --json`` that is ready; stderr goes to a file."""

    def __init__(self, folder: Path, log: Path, *options: str, **environment: str) -> None:
        command = [sys.executable, "-m", "hy3", "serve", str(folder), "--port", "0"]
        self.log = log
        self.process = subprocess.Popen(
            [*command, "--json", *options],
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            env=os.environ | environment,
            text=True,
        )
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        assert ready, log.read_text()
        self.facts = json.loads(self.process.stdout.readline())
        self.client = httpx.Client(base_url=self.facts["url"], timeout=DEADLINE_S)

    def end(self) -> int:
        """Wait for the process to end by itself."""
        return self.process.wait(DEADLINE_S)


@contextmanager
def served(folder: Path, log: Path, *options: str, **environment: str) -> Iterator[Served]:
    server = Served(folder, log, *options, **environment)
    try:
        yield server
    finally:
        server.client.close()
        server.process.kill()
        server.process.wait()


def body(max_tokens: int = 20, stream: bool = False) -> dict:
    return {
        "model": "scripted",
        "messages": HELLO,
        "max_tokens": max_tokens,
        "stream": stream,
        "temperature": 0,
    }


def test_serve_from_start_to_drain(folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    options = ("--api-key-file", str(keys), "--served-model-name", "scripted", "--drafts", "2")
    with served(folder, tmp_path / "log", *options, "--max-context", "1024") as server:
        facts = server.facts
        assert facts["schema"] == "hy3.serve/1"
        assert facts["url"].startswith("http://127.0.0.1:")
        assert (facts["model"], facts["drafts"], facts["max_context"]) == ("scripted", 2, 1024)
        assert facts["kv_dtype"] == "bf16"
        assert any("no KV scales" in choice for choice in facts["choices"])

        assert server.client.post("/chat/completions", json=body()).status_code == 401
        server.client.headers["Authorization"] = f"Bearer {KEY}"
        answer = server.client.post("/chat/completions", json=body()).json()
        assert answer["choices"][0]["message"]["content"] == PLAIN

        # A stream that is under way when the signal comes still ends by itself.
        endless = body(900, stream=True) | {"ignore_eos": True}
        with server.client.stream("POST", "/chat/completions", json=endless) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            server.process.send_signal(signal.SIGTERM)
            remaining = [line for line in lines if line]
        assert remaining[-1] == "data: [DONE]"
        assert json.loads(remaining[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert server.end() == 0
        log = server.log.read_text()
        assert " POST /v1/chat/completions 200 " in log
        assert KEY not in log
        assert "Traceback" not in log


def test_the_second_signal_ends_at_once(folder: Path, tmp_path: Path) -> None:
    with served(folder, tmp_path / "log", "--served-model-name", "scripted") as server:
        endless = body(1900, stream=True) | {"ignore_eos": True}
        with server.client.stream("POST", "/chat/completions", json=endless) as response:
            next(response.iter_lines())
            server.process.send_signal(signal.SIGINT)
            server.process.send_signal(signal.SIGTERM)
            assert server.end() == 130


def test_a_signal_while_loading_ends_it(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-m", "hy3", "serve", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log.open("w"))
    try:
        wait_until(lambda: "listening on" in log.read_text())
        url = log.read_text().split("listening on ")[1].split("/v1")[0]
        wait_until(lambda: answers(f"{url}/health"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    """Whether anything is said there; 503 while the model loads."""
    try:
        return httpx.get(url, timeout=1).status_code in (200, 503)
    except httpx.TransportError:
        return False


def test_a_load_that_fails_ends_the_server_with_its_error(folder: Path) -> None:
    command = [sys.executable, "-m", "hy3", "serve", str(folder), "--port", "0", "--json"]
    finished = subprocess.run(
        [*command, "--max-context", "999999"], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert finished.returncode == 2, finished.stderr
    assert json.loads(finished.stdout)["error"]["where"] == "--max-context"
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (("--host", "0.0.0.0"), "--host"),
        (("--drafts", "many"), "--drafts"),
        (("--kv-dtype", "int4"), "--kv-dtype"),
        (("--reasoning-effort", "extreme"), "reasoning_effort"),
        (("--api-key-file", "/nowhere"), "/nowhere"),
    ],
)
def test_bad_options_are_refused_before_anything_loads(
    folder: Path, options: tuple[str, ...], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HY3_API_KEY", raising=False)
    result = CliRunner().invoke(app, ["serve", str(folder), "--port", "0", *options])
    assert isinstance(result.exception, InputError)
    assert result.exception.where == where


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["serve", str(tmp_path), "--port", "0"])
    assert isinstance(result.exception, InputError)


def test_a_port_in_use(folder: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert url_of(taken) == f"http://127.0.0.1:{port}"
        result = CliRunner().invoke(app, ["serve", str(folder), "--port", str(port)])
    assert isinstance(result.exception, EnvironmentFault)
    assert "cannot listen" in result.exception.message

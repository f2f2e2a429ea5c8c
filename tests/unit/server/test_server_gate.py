"""Every limit and every error status, in OpenAI's shape, over a real socket."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from hy3.errors import InputError
from hy3.server.keys import ApiKeys, check_address, load_keys
from hy3.server.limits import Admission, Limits
from support.fault_backend import FaultBackend, Step
from support.live_server import wait_until
from support.served_models import Live, serve

KEY = "sk-very-secret-key"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
LETTERS = [Step((33, 34)), Step((35, 36))]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    limits = Limits(max_body_bytes=4096, max_running=1, max_waiting=2)
    with serve(FaultBackend(LETTERS, max_context=256), limits=limits, keys=(KEY, "other")) as live:
        yield live


@pytest.fixture
def client(live: Live) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=live.url, headers=headers, timeout=30) as client:
        yield client


def error_of(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    return body["error"]


@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", f"Basic {KEY}", KEY, f"Bearer {KEY}x", "Bearer"]
)
def test_401_without_a_valid_key(live: Live, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    for path in ("/v1/models", "/v1/chat/completions", "/metrics", "/nothing"):
        error = error_of(httpx.get(live.url + path, headers=headers), 401)
        assert error["code"] == "invalid_api_key"
        assert KEY not in error["message"]


def test_health_needs_no_key_and_every_key_opens(live: Live) -> None:
    assert httpx.get(f"{live.url}/health").json() == {"status": "ready"}
    for key in (KEY, "other"):
        headers = {"Authorization": f"bearer {key}"}
        assert httpx.get(f"{live.url}/v1/models", headers=headers).status_code == 200


def test_keys_never_reach_the_log(
    live: Live, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        client.post("/v1/chat/completions", json=HELLO)
        httpx.get(f"{live.url}/v1/models", headers={"Authorization": "Bearer guessed-key"})
    assert " /v1/chat/completions 200 " in caplog.text
    assert KEY not in caplog.text
    assert "guessed-key" not in caplog.text


def test_request_id_goes_in_and_out(client: httpx.Client) -> None:
    given = client.get("/v1/models", headers={"x-request-id": "trace-7"})
    assert given.headers.get_list("x-request-id") == ["trace-7"]
    made = [client.get("/v1/models").headers["x-request-id"] for _ in range(2)]
    assert made[0] != made[1]
    spaced = client.get("/v1/models", headers={"x-request-id": "two words"})
    assert spaced.headers["x-request-id"] != "two words"


def test_404_and_405(client: httpx.Client) -> None:
    assert error_of(client.get("/v1/nothing"), 404)["code"] == "not_found"
    assert error_of(client.get("/v1/chat/completions"), 405)["code"] == "method_not_allowed"
    assert error_of(client.get("/v1/models/other"), 404)["code"] == "model_not_found"
    error = error_of(client.post("/v1/chat/completions", json=HELLO | {"model": "x"}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_413_by_announced_and_by_real_length(live: Live, client: httpx.Client) -> None:
    body = b'{"model": "m", "messages": [], "padding": "' + b"x" * 5000 + b'"}'
    headers = {"Content-Type": "application/json"}
    announced = client.post("/v1/chat/completions", content=body, headers=headers)
    assert error_of(announced, 413)["code"] == "body_too_large"
    chunked = client.post(
        "/v1/chat/completions", content=iter([body[:3000], body[3000:]]), headers=headers
    )
    assert error_of(chunked, 413)["code"] == "body_too_large"
    assert client.post("/v1/chat/completions", json=HELLO).status_code == 200


def test_400_for_broken_bodies(client: httpx.Client) -> None:
    headers = {"Content-Type": "application/json"}
    broken = client.post("/v1/chat/completions", content=b'{"model": ', headers=headers)
    assert error_of(broken, 400)["code"] == "bad_json"
    plain = client.post(
        "/v1/chat/completions", content=b"{}", headers={"Content-Type": "text/plain"}
    )
    assert "application/json" in error_of(plain, 400)["message"]
    deep = client.post("/v1/chat/completions", content=b"[" * 4000, headers=headers)
    error_of(deep, 400)


def test_half_a_surrogate_pair_is_no_crash(client: httpx.Client) -> None:
    def post(message: dict) -> httpx.Response:
        body = json.dumps(HELLO | {"messages": [message]})
        headers = {"Content-Type": "application/json"}
        return client.post("/v1/chat/completions", content=body, headers=headers)

    assert post({"role": "user", "content": "\ud83d"}).status_code == 200
    error_of(post({"role": "user", "content": [{"type": "\ud83d"}]}), 400)


def test_what_nobody_expected_is_a_500_without_details(
    live: Live, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live.served.tokenizer.__class__, "encode", lambda *_: 1 / 0)
    error = error_of(client.post("/v1/chat/completions", json=HELLO), 500)
    assert error["code"] == "internal_error"
    assert "division" not in error["message"]


ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}


def answer_like(schema: dict) -> dict:
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return {"response_format": wanted}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop": [""]}, None),
        ({"stop": ["a"] * 17}, None),
        ({"tools": [{"type": "retrieval"}]}, None),
        ({"tool_choice": "sometimes"}, None),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"min_tokens": 9}, None),
        (answer_like(ENDLESS), None),
    ],
)
def test_400_names_the_parameter(client: httpx.Client, change: dict, param: str | None) -> None:
    error = error_of(client.post("/v1/chat/completions", json=HELLO | change), 400)
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param


def test_400_for_content_that_is_not_text(client: httpx.Client) -> None:
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    message = {"role": "user", "content": image}
    error = error_of(client.post("/v1/chat/completions", json=HELLO | {"messages": [message]}), 400)
    assert "image_url" in error["message"]


@pytest.mark.parametrize("where", ["top", "kwargs"])
def test_an_unknown_effort_is_a_400_that_lists_the_known(client: httpx.Client, where: str) -> None:
    effort = {"reasoning_effort": "extreme"}
    change = effort if where == "top" else {"chat_template_kwargs": effort}
    error = error_of(client.post("/v1/chat/completions", json=HELLO | change), 400)
    for known in ("none", "no_think", "minimal", "low", "medium", "high", "xhigh", "max"):
        assert known in error["message"]


@pytest.mark.parametrize("change", [{"max_tokens": 256}, {"messages": [
    {"role": "user", "content": "long " * 100}]}])  # fmt: skip
def test_400_when_the_context_is_exceeded(client: httpx.Client, change: dict) -> None:
    error = error_of(client.post("/v1/chat/completions", json=HELLO | change), 400)
    assert error["code"] == "context_length_exceeded"
    assert "256" in error["message"]


def test_429_when_the_queue_is_full() -> None:
    limits = Limits(max_running=1, max_waiting=1)
    backend = FaultBackend([Step((33,), pause_s=0.2)] * 20)

    async def flood(url: str) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            running = [
                asyncio.ensure_future(client.post("/v1/chat/completions", json=HELLO))
                for _ in range(2)
            ]
            while len(backend.running) < 2:
                await asyncio.sleep(0.01)
            refused = await client.post("/v1/chat/completions", json=HELLO)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            while backend.running:
                await asyncio.sleep(0.01)
            backend.script = LETTERS
            return [refused, await client.post("/v1/chat/completions", json=HELLO)]

    with serve(backend, limits=limits) as live:
        refused, afterwards = asyncio.run(asyncio.wait_for(flood(live.url), 30))
    error = error_of(refused, 429)
    assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
    assert int(refused.headers["Retry-After"]) >= 1
    assert afterwards.status_code == 200


def test_more_choices_than_places_is_a_400(client: httpx.Client) -> None:
    error = error_of(client.post("/v1/chat/completions", json=HELLO | {"n": 4}), 400)
    assert error["param"] == "n"


@pytest.mark.parametrize(
    ("status", "code"), [("loading", "model_loading"), ("failed", "engine_failure")]
)
def test_503_until_ready_and_after_a_failure(status: str, code: str) -> None:
    with serve(FaultBackend(LETTERS, status=status), ready=False) as live:
        for path in ("/health", "/v1/models"):
            response = httpx.get(live.url + path)
            assert error_of(response, 503)["code"] == code
        response = httpx.post(f"{live.url}/v1/chat/completions", json=HELLO)
        assert error_of(response, 503)["code"] == code
        assert ("Retry-After" in response.headers) == (status == "loading")
        assert httpx.get(f"{live.url}/metrics").status_code == 200
        live.backend.status = "ready"
        assert httpx.get(f"{live.url}/health").status_code == 200


def test_408_when_the_request_takes_too_long() -> None:
    limits = Limits(request_seconds=0.2)
    with serve(FaultBackend([Step((33,), pause_s=30)]), limits=limits) as live:
        response = httpx.post(f"{live.url}/v1/chat/completions", json=HELLO, timeout=30)
        assert error_of(response, 408)["code"] == "request_timeout"
        assert response.headers["x-should-retry"] == "false"
        wait_until(lambda: not live.backend.running)


def test_a_body_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hy3.server.gate._STALL_SECONDS", 0.0)
    with serve(FaultBackend(LETTERS), limits=Limits(request_seconds=0.2)) as live:
        host, port = live.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            )
            assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_admission_counts_places() -> None:
    admission = Admission(Limits(max_running=2, max_waiting=1))
    admission.admit(3)
    with pytest.raises(Exception, match="queue is full"):
        admission.admit(1)
    admission.release(2)
    admission.admit(2)
    assert admission.open == 3


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_another_address_needs_a_key(host: str) -> None:
    with pytest.raises(InputError, match="without an API key"):
        check_address(host, ApiKeys())
    check_address(host, ApiKeys(["k"]))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    check_address(host, ApiKeys())


def test_keys_from_a_file_or_the_environment(tmp_path) -> None:
    file = tmp_path / "keys"
    file.write_text("first\n\n second \n")
    keys = load_keys(file, {"HY3_API_KEY": "ignored"})
    accepted = [keys.accepts(f"Bearer {key}".encode()) for key in ("first", "second", "ignored")]
    assert accepted == [True, True, False]
    assert load_keys(None, {"HY3_API_KEY": "k"}).accepts(b"Bearer k")
    assert not load_keys(None, {})
    file.write_text("\n\n")
    with pytest.raises(InputError, match="holds no key"):
        load_keys(file, {})
    with pytest.raises(InputError, match="cannot be read"):
        load_keys(tmp_path / "missing", {})
    with pytest.raises(InputError, match="HTTP header"):
        load_keys(None, {"HY3_API_KEY": "schlüssel"})

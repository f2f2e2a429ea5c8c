"""What a stream does when tokens are slow, come several at once, or stop coming."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from hy3.server.limits import Limits
from support.fault_backend import FaultBackend, Step
from support.live_server import wait_until
from support.served_models import Live, serve

HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serve(FaultBackend(), limits=Limits(keep_alive_seconds=0.1)) as live:
        yield live


def play(live: Live, *steps: tuple[str, float, str]) -> None:
    """Script the next replies: text of a step's tokens, pause before it, fault instead of it."""
    encode = live.served.tokenizer.encode
    live.backend.script = [Step(tuple(encode(text)), pause, fault) for text, pause, fault in steps]


def lines(live: Live, path: str = "/v1/chat/completions", **change) -> list[str]:
    """The lines of a stream, without the empty ones."""
    response = httpx.post(live.url + path, json=HELLO | change, timeout=30)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return [line for line in response.text.split("\n") if line]


def events(found: list[str]) -> list[dict]:
    data = [line.removeprefix("data: ") for line in found if line.startswith("data: ")]
    return [json.loads(item) for item in data if item != "[DONE]"]


def content(found: list[str]) -> str:
    choices = [choice for event in events(found) for choice in event.get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_silence_is_filled_with_comments(live: Live) -> None:
    play(live, ("a", 0.5, ""), ("b", 0.0, ""))
    found = lines(live)
    assert found[0] == ": keep-alive"
    assert 2 <= found.count(": keep-alive") <= 5
    assert content(found) == "ab"
    assert found[-1] == "data: [DONE]"


def test_an_engine_failure_in_mid_stream_is_an_error_event(live: Live) -> None:
    play(live, ("a", 0.0, ""), ("", 0.0, "the device was lost"))
    found = lines(live)
    assert content(found) == "a"
    error = events(found)[-1]["error"]
    assert (error["code"], error["type"]) == ("engine_failure", "server_error")
    assert "the device was lost" in error["message"]
    assert "data: [DONE]" not in found
    wait_until(lambda: not live.backend.running)


def test_an_engine_failure_without_a_stream_is_a_500(live: Live) -> None:
    play(live, ("a", 0.0, ""), ("", 0.0, "the device was lost"))
    body = HELLO | {"stream": False}
    response = httpx.post(f"{live.url}/v1/chat/completions", json=body)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "engine_failure"


def test_an_engine_that_has_just_failed_refuses_with_a_500(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live.backend, "refuses", "the device was lost")
    response = httpx.post(f"{live.url}/v1/chat/completions", json=HELLO)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "engine_failure"
    monkeypatch.undo()
    play(live, ("a", 0.0, ""))
    assert content(lines(live)) == "a"


def test_the_time_limit_in_mid_stream_is_an_error_event() -> None:
    with serve(FaultBackend(), limits=Limits(request_seconds=0.5)) as live:
        play(live, ("a", 0.0, ""), ("b", 60.0, ""))
        found = lines(live)
        assert content(found) == "a"
        assert events(found)[-1]["error"]["code"] == "request_timeout"
        wait_until(lambda: not live.backend.running)


@pytest.mark.parametrize("stream", [True, False])
def test_usage_counts_up_to_a_stop_string_across_tokens_and_steps(live: Live, stream: bool) -> None:
    # Tokens are single letters here; the stop ends in the middle of the third step.
    play(live, ("ab", 0, ""), ("cde", 0, ""), ("fgh", 0, ""), ("ij", 0, ""))
    change = {"stop": ["efg", "zz"], "return_token_ids": True}
    if stream:
        found = events(lines(live, stream_options={"include_usage": True}, **change))
        choices = [choice for event in found for choice in event["choices"]]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        token_ids = [token for choice in choices for token in choice["token_ids"]]
        last, usage = choices[-1], found[-1]["usage"]
    else:
        body = HELLO | {"stream": False} | change
        answer = httpx.post(f"{live.url}/v1/chat/completions", json=body).json()
        last, usage = answer["choices"][0], answer["usage"]
        text, token_ids = last["message"]["content"], last["token_ids"]
    assert text == "abcd"
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "efg")
    assert usage["completion_tokens"] == 7
    assert token_ids == live.served.tokenizer.encode("abcdefg")
    wait_until(lambda: not live.backend.running)


def test_text_after_the_stop_is_never_on_the_wire(live: Live) -> None:
    play(live, ("ab STOP secret", 0, ""), ("secret", 0, ""))
    found = lines(live, stop="STOP")
    assert content(found) == "ab "
    assert "secret" not in "".join(found)
    assert "STOP" not in content(found)


def test_tokens_of_one_step_come_in_one_chunk_with_their_ids(live: Live) -> None:
    play(live, ("abc", 0, ""), ("de", 0, ""))
    found = events(lines(live, return_token_ids=True))
    assert [len(event["choices"][0]["token_ids"]) for event in found] == [3, 2]
    prompt_ids = live.backend.submitted[-1].prompt_ids
    assert found[0]["prompt_token_ids"] == list(prompt_ids)
    assert "prompt_token_ids" not in found[1]


def test_running_usage_on_every_chunk(live: Live) -> None:
    play(live, ("abc", 0, ""), ("de", 0, ""))
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = events(lines(live, stream_options=options))
    assert [event["usage"]["completion_tokens"] for event in found] == [3, 5, 5]


def test_a_character_across_steps_arrives_whole(live: Live) -> None:
    tokens = live.served.tokenizer.encode("你")
    assert len(tokens) == 3
    live.backend.script = [Step((token,)) for token in tokens]
    found = events(lines(live))
    assert [event["choices"][0]["delta"].get("content") for event in found] == ["你"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(live: Live, stream: bool) -> None:
    play(live, ("a", 0.0, ""), *[("b", 0.15, "")] * 6)
    host, port = live.url.removeprefix("http://").split(":")
    body = json.dumps(HELLO | {"stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
    wait_until(lambda: live.backend.running)
    sequence = set(live.backend.running)
    connection.close()
    wait_until(lambda: not live.backend.running)
    assert live.backend.aborted >= sequence


def test_a_client_that_leaves_is_no_error_in_the_log(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    play(live, *[("a", 0.15, "")] * 6)
    with caplog.at_level(logging.INFO, logger="hy3.server"):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{live.url}/v1/chat/completions", json=HELLO | {"stream": False}, timeout=0.3
            )
        wait_until(lambda: " 499 " in caplog.text)
    assert {record.levelno for record in caplog.records} == {logging.INFO}

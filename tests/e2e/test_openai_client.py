"""The real ``openai`` client against the real engine, on a checkpoint whose replies are known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import openai
import pytest
from openai import OpenAI
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from support.scripted import LONG, PLAIN, REASONING, make_scripted
from support.served_models import Live, serve_native

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"model": "m", "temperature": 0}


@pytest.fixture(scope="module", params=[":opensource", ""], ids=["suffixed", "bare"])
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Live]:
    folder: Path = tmp_path_factory.mktemp("scripted") / "model"
    with serve_native(make_scripted(folder, request.param, mtp_noise=2.0)) as live:
        yield live


@pytest.fixture
def client(live: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{live.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def post(live: Live, path: str, **body) -> dict:
    response = httpx.post(live.url + path, json=GREEDY | body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def post_stream(live: Live, path: str, **body) -> list[dict]:
    body = GREEDY | {"stream": True} | body
    response = httpx.post(live.url + path, json=body, timeout=60)
    assert response.status_code == 200, response.text
    *data, done = [line for line in response.text.split("\n") if line.startswith("data: ")]
    assert done == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in data]


def test_chat(client: OpenAI, live: Live) -> None:
    answer = client.chat.completions.create(messages=HELLO, **GREEDY)
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == (PLAIN, "stop")
    assert choice.message.role == "assistant"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0
    assert answer.system_fingerprint == live.served.fingerprint


def test_reasoning_comes_under_both_names(client: OpenAI) -> None:
    answer = client.chat.completions.create(messages=HELLO, reasoning_effort="high", **GREEDY)
    message = answer.choices[0].message
    assert (message.reasoning, message.reasoning_content) == (REASONING, REASONING)
    assert message.content == PLAIN
    # One token a word, and the marker that closes the block.
    assert answer.usage.completion_tokens_details.reasoning_tokens == 7


@pytest.mark.parametrize(
    ("effort", "thinks"),
    [("none", False), ("minimal", True), ("medium", True), ("xhigh", True), ("max", True)],
)
def test_every_effort_is_mapped(client: OpenAI, effort: str, thinks: bool) -> None:
    answer = client.chat.completions.create(messages=HELLO, reasoning_effort=effort, **GREEDY)
    assert (answer.choices[0].message.content, hasattr(answer.choices[0].message, "reasoning")) == (
        PLAIN,
        thinks,
    )


def test_stream(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        messages=HELLO,
        reasoning_effort="low",
        stream=True,
        stream_options={"include_usage": True},
        **GREEDY,
    )
    chunks = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == PLAIN
    for name in ("reasoning", "reasoning_content"):
        assert "".join(getattr(delta, name, "") for delta in deltas) == REASONING
    assert [delta.role for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    whole = client.chat.completions.create(messages=HELLO, reasoning_effort="low", **GREEDY)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_tool_loop_of_two_turns(client: OpenAI) -> None:
    messages = [{"role": "user", "content": "How will the weather be?"}]
    tools = {"tools": [WEATHER]}
    first = client.chat.completions.create(messages=messages, **tools, **GREEDY).choices[0]
    assert (first.finish_reason, first.message.content) == ("tool_calls", None)
    (call,) = first.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris", "days": 3}
    messages += [
        first.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "clear"}'},
    ]
    second = client.chat.completions.create(messages=messages, **tools, **GREEDY).choices[0]
    assert (second.finish_reason, second.message.content) == ("stop", PLAIN)


def test_a_streamed_tool_call_is_the_whole_one_in_pieces(client: OpenAI) -> None:
    with client.chat.completions.stream(messages=HELLO, tools=[WEATHER], **GREEDY) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    whole = client.chat.completions.create(messages=HELLO, tools=[WEATHER], **GREEDY).choices[0]
    assert streamed.finish_reason == "tool_calls"
    (a,), (b,) = streamed.message.tool_calls, whole.message.tool_calls
    assert (a.function.name, a.function.arguments) == (b.function.name, b.function.arguments)
    assert a.id != b.id


def test_tool_choice_none_hides_the_tools(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        messages=HELLO, tools=[WEATHER], tool_choice="none", **GREEDY
    )
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (PLAIN, "stop")


def test_bodies_are_strictly_of_the_clients_types(live: Live) -> None:
    chat = "/v1/chat/completions"
    for change in (
        {"reasoning_effort": "high", "n": 2, "logprobs": True, "top_logprobs": 3},
        {"tools": [WEATHER], "return_token_ids": True},
        {"max_tokens": 3},
    ):
        ChatCompletion.model_validate(post(live, chat, messages=HELLO, **change), strict=True)
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = post_stream(live, chat, messages=HELLO, stream_options=options, **change)
        for chunk in chunks:
            ChatCompletionChunk.model_validate(chunk, strict=True)
    body = post(live, "/v1/completions", prompt="Count:", logprobs=2, max_tokens=5, n=2)
    Completion.model_validate(body, strict=True)
    models = httpx.get(f"{live.url}/v1/models").json()
    Model.model_validate(models["data"][0], strict=True)


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.max_model_len) == ("m", "model", 2048)
    assert client.models.retrieve("m") == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("n")


def test_completions(client: OpenAI, live: Live) -> None:
    answer = client.completions.create(prompt="Count:", max_tokens=3, **GREEDY)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (
        " ".join(LONG.split()[:3]),
        "length",
    )
    whole = client.completions.create(prompt="Count:", max_tokens=500, **GREEDY)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (LONG, "stop")
    stream = client.completions.create(prompt="Count:", max_tokens=500, stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in stream) == LONG
    ids = live.served.tokenizer.encode("Count:")
    several = client.completions.create(prompt=[ids, ids], max_tokens=2, n=2, **GREEDY)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in several.choices} == {" ".join(LONG.split()[:2])}
    assert several.usage.prompt_tokens == 2 * len(ids)
    assert several.usage.completion_tokens == 8
    echoed = client.completions.create(prompt="Count:", max_tokens=1, echo=True, **GREEDY)
    assert echoed.choices[0].text == "Count:" + LONG.split()[0]


def test_logprobs_describe_the_tokens(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        messages=HELLO, logprobs=True, top_logprobs=2, max_tokens=4, **GREEDY
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == 4
    assert b"".join(bytes(item.bytes) for item in content).decode() == (
        answer.choices[0].message.content
    )
    for item in content:
        assert item.logprob <= 0
        assert item.top_logprobs[0].token == item.token
        assert len(item.top_logprobs) == 2
        assert item.top_logprobs[0].logprob >= item.top_logprobs[1].logprob


def test_a_stop_string_over_the_real_engine(client: OpenAI) -> None:
    answer = client.chat.completions.create(messages=HELLO, stop=[" four, and"], **GREEDY)
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Two and two make", "stop")
    assert choice.stop_reason == " four, and"


def test_logit_bias_and_stop_ids(client: OpenAI, live: Live) -> None:
    end = live.served.tokenizer.eos_ids[0]
    answer = client.chat.completions.create(messages=HELLO, logit_bias={end: 100}, **GREEDY)
    assert answer.choices[0].message.content is None
    assert answer.usage.completion_tokens == 1


def test_cached_tokens_are_reported(client: OpenAI) -> None:
    long = [{"role": "user", "content": "the same words " * 20}]
    first, second = (
        client.chat.completions.create(messages=long, max_tokens=2, **GREEDY) for _ in range(2)
    )
    assert first.usage.prompt_tokens_details.cached_tokens < 64
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert second.usage.prompt_tokens - 32 <= cached < second.usage.prompt_tokens


def test_errors_raise_the_clients_exceptions(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(messages=HELLO, max_tokens=10**6, **GREEDY)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="no_think"):
        client.chat.completions.create(messages=HELLO, reasoning_effort="extreme", **GREEDY)


@pytest.mark.parametrize("thinking", [False, True])
def test_response_format_json_schema(client: OpenAI, thinking: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "integer", "maximum": 9}, "ok": {"type": "boolean"}},
        "required": ["answer", "ok"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        messages=HELLO,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        reasoning_effort="high" if thinking else "none",
        max_tokens=400,
        **GREEDY,
    )
    message = answer.choices[0].message
    found = json.loads(message.content)
    assert set(found) == {"answer", "ok"}
    assert isinstance(found["answer"], int)
    assert getattr(message, "reasoning", None) == (REASONING if thinking else None)


@pytest.mark.parametrize(
    "inner", [{"type": "wrong"}, {"type": "array", "items": {"$ref": "#/$defs/b"}}]
)
def test_a_schema_that_makes_no_sense_is_a_400(client: OpenAI, inner: dict) -> None:
    schema = {"type": "object", "properties": {"a": inner}, "$defs": {"b": {"$ref": "#/$defs/b"}}}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            messages=HELLO,
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
            **GREEDY,
        )


CLOCK = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}},
            "required": ["zone"],
        },
    },
}


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_named_tool_is_called_whatever_the_model_wants(
    client: OpenAI, thinking: bool, stream: bool
) -> None:
    request = {
        "messages": HELLO,
        "tools": [WEATHER, CLOCK],
        "tool_choice": {"type": "function", "function": {"name": "get_time"}},
        "reasoning_effort": "high" if thinking else "none",
        **GREEDY,
    }
    if stream:
        with client.chat.completions.stream(**request) as events:
            choice = events.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**request).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_time"
    assert json.loads(call.function.arguments)["zone"] in ("UTC", "CET")


def test_required_forces_a_call(client: OpenAI) -> None:
    # The last turn is the tool's, after which this model would answer in words.
    messages = [
        *HELLO,
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "get_time", "arguments": '{"zone": "UTC"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "noon"},
    ]
    request = {"messages": messages, "tools": [CLOCK], "parallel_tool_calls": False, **GREEDY}
    free = client.chat.completions.create(**request).choices[0]
    assert (free.message.tool_calls, free.message.content) == (None, PLAIN)
    forced = client.chat.completions.create(tool_choice="required", **request).choices[0]
    assert forced.finish_reason == "tool_calls"
    (call,) = forced.message.tool_calls
    assert json.loads(call.function.arguments)["zone"] in ("UTC", "CET")


def test_a_json_format_beside_tools_leaves_the_choice(client: OpenAI) -> None:
    city = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": city}}
    request = {"response_format": {"type": "json_object"}, "tools": [tool], **GREEDY}
    request["parallel_tool_calls"] = False
    called = client.chat.completions.create(messages=HELLO, **request).choices[0]
    assert called.finish_reason == "tool_calls"
    assert called.message.tool_calls[0].function.arguments == '{"city": "Paris"}'


def test_a_tool_whose_argument_never_ends_is_a_400(client: OpenAI) -> None:
    endless = {"type": "array", "items": {"$ref": "#/properties/zone"}, "minItems": 1}
    parameters = {"type": "object", "properties": {"zone": endless}, "required": ["zone"]}
    tool = {"type": "function", "function": {"name": "get_time", "parameters": parameters}}
    with pytest.raises(openai.BadRequestError, match="no finite value fits '#/properties/zone'"):
        client.chat.completions.create(
            messages=HELLO, tools=[tool], tool_choice="required", **GREEDY
        )


@pytest.mark.parametrize(
    "request_change",
    [
        {"tool_choice": "required"},
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "fly"}}},
    ],
)
def test_a_call_that_cannot_be_made_is_a_400(client: OpenAI, request_change: dict) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(messages=HELLO, **request_change, **GREEDY)

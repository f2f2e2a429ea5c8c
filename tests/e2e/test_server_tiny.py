"""The trained hy3-tiny behind the server: it thinks, answers, calls tools and keeps to JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from openai import OpenAI

from support.served_models import serve_native
from support.tiny import TINY

GREEDY = {"model": "m", "temperature": 0, "max_tokens": 300}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with serve_native(TINY) as live, OpenAI(base_url=f"{live.url}/v1", api_key="x") as client:
        yield client


def ask(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


def test_a_streamed_answer_is_the_whole_one(client: OpenAI) -> None:
    request = {"messages": ask("What is 12 + 30?"), "reasoning_effort": "high", **GREEDY}
    whole = client.chat.completions.create(**request)
    message = whole.choices[0].message
    assert "42" in message.content
    assert message.reasoning
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(**request, **options))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == message.content
    assert "".join(getattr(delta, "reasoning", "") for delta in deltas) == message.reasoning
    usage = chunks[-1].usage
    assert usage.completion_tokens == whole.usage.completion_tokens
    details = usage.completion_tokens_details
    assert 0 < details.reasoning_tokens < usage.completion_tokens


def test_a_required_call_fits_its_schema(client: OpenAI) -> None:
    choice = client.chat.completions.create(
        messages=ask("How is the weather in Paris?"),
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        **GREEDY,
    ).choices[0]
    assert choice.finish_reason == "tool_calls"
    arguments = json.loads(choice.message.tool_calls[0].function.arguments)
    assert isinstance(arguments["city"], str)
    assert set(arguments) <= {"city", "days"}


def test_json_by_schema(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["sum"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        messages=ask("What is 12 + 30?"),
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
        **GREEDY,
    )
    assert set(json.loads(answer.choices[0].message.content)) == {"sum"}


def test_a_seed_repeats_a_sampled_answer(client: OpenAI) -> None:
    request = {"messages": ask("Tell me something."), "model": "m", "max_tokens": 30}
    texts = [
        client.chat.completions.create(seed=seed, temperature=1.5, **request).choices[0]
        for seed in (1, 1, *range(2, 10))
    ]
    texts = [choice.message.content for choice in texts]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1

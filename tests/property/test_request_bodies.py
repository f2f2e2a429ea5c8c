"""No body, however wrong, gets an answer other than a completion or a 4xx in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx2 as httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.fault_backend import FaultBackend, Step
from support.served_models import Live, serve

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
SHARED = (
    "n", "stream", "stream_options", "stop", "max_tokens", "min_tokens", "temperature", "top_p",
    "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias",
    "seed", "stop_token_ids", "ignore_eos", "return_token_ids", "logprobs",
)  # fmt: skip
CHAT = (
    "messages", "max_completion_tokens", "top_logprobs", "response_format", "tools", "tool_choice",
    "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs",
)  # fmt: skip
COMPLETION = ("prompt", "echo", "suffix", "best_of")
# Values near the right shape get past the first check.
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "robot"])},
        optional={"content": values, "tool_calls": values, "reasoning": values},
    ),
    max_size=3,
)
schemas = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("object") | values,
        "properties": st.dictionaries(st.text(max_size=4), values, max_size=3) | values,
        "required": st.lists(st.text(max_size=4), max_size=2) | values,
    },
)
tools = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {"name": st.text(min_size=1, max_size=4)},
                optional={"description": values, "parameters": schemas | values},
            ),
        }
    ),
    min_size=1,
    max_size=2,
)
choices = st.sampled_from(["auto", "none", "required"]) | st.just(
    {"type": "function", "function": {"name": "f"}}
)
formats = st.just({"type": "json_object"}) | st.fixed_dictionaries(
    {"type": st.just("json_schema")},
    optional={"json_schema": st.fixed_dictionaries({"schema": schemas | values}) | values},
)
hello = st.just([{"role": "user", "content": "Hi"}])
chat_bodies = st.fixed_dictionaries(
    {"model": st.just("m"), "messages": messages | values},
    optional={name: values for name in SHARED + CHAT if name != "messages"},
) | st.fixed_dictionaries(
    {"model": st.just("m"), "messages": hello, "tools": tools, "tool_choice": choices},
    optional={"response_format": formats, "parallel_tool_calls": st.booleans()},
)
completion_bodies = st.fixed_dictionaries(
    {"model": st.just("m"), "prompt": values | st.text(min_size=1, max_size=5)},
    optional={name: values for name in SHARED + COMPLETION if name != "prompt"},
)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    live: Live
    with serve(FaultBackend([Step((33, 34)), Step((35,))])) as live:
        with httpx.Client(base_url=live.url, timeout=60) as client:
            yield client
        assert not live.backend.running


def check(client: httpx.Client, path: str, body: object) -> None:
    content = json.dumps(body).encode()
    response = client.post(path, content=content, headers={"Content-Type": "application/json"})
    if response.status_code == 200:
        assert '"error"' not in response.text.split("\n")[0][:20]
        return
    assert response.status_code in (400, 404, 429), response.text
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


fuzzing = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@fuzzing
@given(chat_bodies)
def test_chat(client: httpx.Client, body: object) -> None:
    check(client, "/v1/chat/completions", body)


@fuzzing
@given(completion_bodies | values)
def test_completions(client: httpx.Client, body: object) -> None:
    check(client, "/v1/completions", body)

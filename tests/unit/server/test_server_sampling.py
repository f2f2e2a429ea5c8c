"""A request's sampling: its own values, then the checkpoint's, then off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hy3.errors import InputError
from hy3.server.defaults import SamplingDefaults, load_defaults
from hy3.server.errors import ApiError
from hy3.server.sampling import output_budget, sampling_params
from hy3.server.schema import ChatBody, CompletionBody
from support.fault_backend import FaultBackend, Step
from support.served_models import serve

HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def write(folder: Path, **values) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return folder


def test_defaults_come_from_the_checkpoint(tmp_path: Path) -> None:
    folder = write(tmp_path, temperature=0.9, top_p=0.95, top_k=40, do_sample=True, eos_token_id=2)
    defaults = load_defaults(folder)
    assert defaults == SamplingDefaults(temperature=0.9, top_p=0.95, top_k=40)
    params = sampling_params(ChatBody(**HELLO), defaults, 10)
    assert (params.temperature, params.top_p, params.top_k) == (0.9, 0.95, 40)
    assert (params.min_p, params.repetition_penalty, params.seed) == (0.0, 1.0, None)


def test_the_requests_values_win_zero_included(tmp_path: Path) -> None:
    defaults = load_defaults(write(tmp_path, temperature=0.9, top_p=0.95, repetition_penalty=1.1))
    body = ChatBody(**HELLO, temperature=0, top_p=1, top_k=5, min_p=0.1, repetition_penalty=1.0)
    params = sampling_params(body, defaults, 10)
    assert (params.temperature, params.top_p, params.top_k) == (0.0, 1.0, 5)
    assert (params.min_p, params.repetition_penalty) == (0.1, 1.0)


def test_nothing_recommended(tmp_path: Path) -> None:
    assert load_defaults(tmp_path) == SamplingDefaults()


@pytest.mark.parametrize("values", [{"temperature": "hot"}, {"top_p": 0}, {"top_k": True}])
def test_recommendations_that_make_no_sense(tmp_path: Path, values: dict) -> None:
    with pytest.raises(InputError):
        load_defaults(write(tmp_path, **values))


def test_everything_a_body_says_reaches_the_engine() -> None:
    body = CompletionBody(
        model="m",
        prompt="x",
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"7": -100},
        seed=3,
        stop_token_ids=[5],
        ignore_eos=True,
        min_tokens=2,
    )
    params = sampling_params(body, SamplingDefaults(), 16, logprobs=4)
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, -0.5)
    assert params.logit_bias == {7: -100.0}
    assert (params.seed, params.stop_token_ids, params.ignore_eos) == (3, (5,), True)
    assert (params.min_tokens, params.max_tokens, params.logprobs) == (2, 16, 4)


def test_null_is_unset() -> None:
    nulls = dict.fromkeys(
        ("stop", "logit_bias", "presence_penalty", "frequency_penalty", "n", "stream", "logprobs",
         "top_logprobs", "stop_token_ids", "max_tokens", "seed", "tools", "tool_choice",
         "response_format", "stream_options", "parallel_tool_calls", "temperature")
    )  # fmt: skip
    body = ChatBody(**HELLO, **nulls)
    assert body == ChatBody(**HELLO)


def test_the_smaller_of_both_names_of_the_output_limit() -> None:
    assert ChatBody(**HELLO).wanted_tokens is None
    assert ChatBody(**HELLO, max_tokens=5).wanted_tokens == 5
    assert ChatBody(**HELLO, max_completion_tokens=6).wanted_tokens == 6
    assert ChatBody(**HELLO, max_tokens=5, max_completion_tokens=6).wanted_tokens == 5


def test_the_budget_is_what_the_context_leaves() -> None:
    assert output_budget(10, None, 100) == 90
    assert output_budget(10, 90, 100) == 90
    for prompt, wanted in ((10, 91), (100, None), (101, None)):
        with pytest.raises(ApiError) as caught:
            output_budget(prompt, wanted, 100)
        assert caught.value.code == "context_length_exceeded"


def test_choices_of_one_request_have_seeds_apart_and_share_the_rest() -> None:
    import httpx2 as httpx

    with serve(FaultBackend([Step((40,))])) as live:
        body = HELLO | {"n": 3, "seed": 5}
        answer = httpx.post(f"{live.url}/v1/chat/completions", json=body).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        requests = live.backend.submitted
        assert [request.params.seed for request in requests] == [5, 6, 7]
        assert len({request.id for request in requests}) == 3
        assert len({request.prompt_ids for request in requests}) == 1
        assert answer["usage"]["prompt_tokens"] == len(requests[0].prompt_ids)

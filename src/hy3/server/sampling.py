"""How a body becomes ``SamplingParams``: the request's values, else the checkpoint's defaults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hy3.engine.request import GrammarSpec, SamplingParams
from hy3.server.defaults import SamplingDefaults
from hy3.server.errors import ApiError, bad_request
from hy3.server.schema import Sampling
from hy3.server.served import ServedModel


def sampling_params(
    body: Sampling,
    defaults: SamplingDefaults,
    max_tokens: int,
    logprobs: int | None = None,
    grammar: GrammarSpec | None = None,
) -> SamplingParams:
    """The engine's parameters; a value out of range is an InputError, which becomes a 400."""

    def chosen(name: str) -> Any:
        value = getattr(body, name)
        return getattr(defaults, name) if value is None else value

    return SamplingParams(
        max_tokens=max_tokens,
        temperature=chosen("temperature"),
        top_p=chosen("top_p"),
        top_k=chosen("top_k"),
        min_p=chosen("min_p"),
        repetition_penalty=chosen("repetition_penalty"),
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=body.logit_bias,
        seed=body.seed,
        stop_token_ids=tuple(body.stop_token_ids),
        ignore_eos=body.ignore_eos,
        min_tokens=body.min_tokens,
        logprobs=logprobs,
        grammar=grammar,
    )


def output_budget(prompt_tokens: int, wanted: int | None, max_context: int) -> int:
    """How many tokens may be generated; None means as many as fit. Raises the 400 of OpenAI."""
    left = max_context - prompt_tokens
    if left < 1 or (wanted or 0) > left:
        asked = "no room for output" if wanted is None else f"{wanted} for the output"
        raise ApiError(
            400,
            "context_length_exceeded",
            f"the context holds {max_context} tokens; the request has {prompt_tokens} in the "
            f"prompt and {asked}",
            "messages",
        )
    return wanted or left


def check_sampling(body: Sampling, served: ServedModel) -> None:
    """The checks that need the model: its name and the token ids that the client names."""
    served.check_name(body.model)
    check_token_ids("logit_bias", body.logit_bias, served.tokenizer.vocab_size)
    check_token_ids("stop_token_ids", body.stop_token_ids, served.tokenizer.vocab_size)


def check_token_ids(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """Token ids that clients name must exist."""
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise bad_request(f"{name}: token id {token_id} is not in the vocabulary", name)

"""What a caller asks of the engine and what it gets back, in token ids; no torch, no text.

All of it is frozen: the engine's own mutable state of a request is ``hy3.engine.sequence``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from hy3.errors import InputError

FinishReason = Literal["stop", "length", "abort"]
GrammarKind = Literal["json_object", "json_schema", "regex", "lark"]

MAX_TOP_LOGPROBS = 128
MIN_TEMPERATURE = 1e-5  # below it a draw is the most likely token, and logits could overflow


@dataclass(frozen=True)
class GrammarSpec:
    """A constraint on the output; ``text`` is the schema as JSON, the regex, or the Lark source.

    For ``json_object`` the text is unused.
    """

    kind: GrammarKind
    text: str = ""


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen and when to end; raises InputError on a value out of range.

    ``temperature`` 0 is greedy. ``top_k`` of -1 or 0, ``top_p`` of 1 and ``min_p`` of 0 are off.
    Penalties follow OpenAI (presence and frequency, over the output) and CTRL (repetition, over
    prompt and output). ``seed`` fixes the tokens whatever else is in the batch. ``min_tokens``
    forbids the stop ids, the model's own end tokens among them, before that many tokens.
    ``logprobs`` asks for that many alternatives per token, from the unmodified logits; 0 gives
    the chosen token's alone, None nothing.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    grammar: GrammarSpec | None = None

    def __post_init__(self) -> None:
        _check_range("max_tokens", self.max_tokens, 1, 2**31)
        _check_range("min_tokens", self.min_tokens, 0, self.max_tokens)
        _check_range("temperature", self.temperature, 0.0, 100.0)
        _check_range("top_k", self.top_k, -1, 2**31)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if not 0.0 < self.top_p <= 1.0:
            raise _out_of_range("top_p", self.top_p, "above 0 and at most 1")
        if not 0.0 < self.repetition_penalty <= 100.0:
            raise _out_of_range("repetition_penalty", self.repetition_penalty, "in (0, 100]")
        if self.logprobs is not None:
            _check_range("logprobs", self.logprobs, 0, MAX_TOP_LOGPROBS)
        for token_id, bias in self.logit_bias.items():
            _check_range(f"logit_bias[{token_id}]", bias, -100.0, 100.0)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken without a draw."""
        return self.temperature < MIN_TEMPERATURE

    @property
    def truncates(self) -> bool:
        """Whether unlikely tokens are cut off before the draw."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def penalised(self) -> bool:
        """Whether earlier tokens change the logits."""
        additive = self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        return additive or self.repetition_penalty != 1.0


@dataclass(frozen=True)
class Request:
    """One completion of one prompt; ``id`` must be new to the engine."""

    id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams


def fan_out(request: Request, n: int) -> list[Request]:
    """``n`` completions of one prompt as requests of their own: ``id-0`` ... with seeds apart.

    They share the prompt's cached blocks. ``n`` of 1 is the request itself, so that a seed gives
    the same tokens with and without ``n``.
    """
    if n == 1:
        return [request]
    first, params = request.params.seed, request.params
    seeds = [None if first is None else first + i for i in range(n)]
    return [
        Request(f"{request.id}-{i}", request.prompt_ids, replace(params, seed=seed))
        for i, seed in enumerate(seeds)
    ]


@dataclass(frozen=True)
class TokenLogprob:
    """Log probability of a produced token and of the likeliest alternatives, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Usage:
    """What a finished request cost; draft counts are per draft position, nearest first."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int  # of the prompt, found in the cache
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]  # drafts that became output


@dataclass(frozen=True)
class StepOutput:
    """The tokens that one step added to one request.

    The last step of a request has ``finish_reason`` and ``usage``. A token that ended it is the
    last of ``token_ids`` and counted in the usage; ``stop_token_id`` names it then.
    """

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    usage: Usage | None = None


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise _out_of_range(name, value, f"between {low:g} and {high:g}")


def _out_of_range(name: str, value: float, wanted: str) -> InputError:
    return InputError(f"{name} is {value}", hint=f"use a value {wanted}", where=name)

"""``Generation``: the sequences of one HTTP request, from submission to usage.

Between the engine's steps, which are token ids, and the endpoints, which want text: detokenizing,
stop strings, the time limit and the counting happen here, once for both kinds of completion.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from hy3.chat.tokenizer import Tokenizer
from hy3.engine.request import Request, SamplingParams, StepOutput, TokenLogprob, fan_out
from hy3.engine.request import Usage as EngineUsage
from hy3.server.backend import Backend, Outputs
from hy3.server.detokenize import Detokenizer
from hy3.server.errors import ApiError
from hy3.server.gate import timed_out
from hy3.server.limits import Admission, Limits
from hy3.server.metrics import Metrics

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class ChoiceStep:
    """What one engine step added to one choice, as far as it is certain and counts."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or requested stop id that ended it


@dataclass
class Choice:
    """One sequence on its way: its text state, its counts and its times (monotonic seconds)."""

    index: int
    request: Request
    detokenizer: Detokenizer
    output_tokens: int = 0
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    finish_reason: FinishReason | None = None
    engine_usage: EngineUsage | None = None

    def take(self, output: StepOutput) -> ChoiceStep | None:
        """Turn a step into text; None when nothing of it counts any more."""
        self.engine_usage = output.usage or self.engine_usage
        if self.finish_reason is not None:
            return None
        ended_by = output.stop_token_id
        visible = output.token_ids if ended_by is None else output.token_ids[:-1]
        released = self.detokenizer.feed(visible)
        text, stop, count = released.text, released.stop, len(output.token_ids)
        stop_reason: str | int | None = None
        if stop is not None:
            count = released.tokens
        elif output.finish_reason is not None:
            rest = self.detokenizer.finish()
            text, stop = text + rest.text, rest.stop
            self.finish_reason = "length" if output.finish_reason == "length" else "stop"
            if ended_by in self.request.params.stop_token_ids:
                stop_reason = ended_by
        if stop is not None:
            self.finish_reason, stop_reason = "stop", stop
        self._count(count)
        return ChoiceStep(
            index=self.index,
            text=text,
            token_ids=output.token_ids[:count],
            logprobs=None if output.logprobs is None else output.logprobs[:count],
            finish_reason=self.finish_reason,
            stop_reason=stop_reason,
        )

    def _count(self, tokens: int) -> None:
        if tokens:
            self.output_tokens += tokens
            self.last_token_at = time.monotonic()
            self.first_token_at = self.first_token_at or self.last_token_at


def _join(steps: Sequence[ChoiceStep]) -> ChoiceStep:
    """One step that stands for all of a choice's."""
    logprobs = [step.logprobs for step in steps if step.logprobs is not None]
    return replace(
        steps[-1],
        text="".join(step.text for step in steps),
        token_ids=tuple(chain.from_iterable(step.token_ids for step in steps)),
        logprobs=tuple(chain.from_iterable(logprobs)) if logprobs else None,
    )


@dataclass(frozen=True)
class Usage:
    """Tokens of one HTTP request over all its choices; the prompt counts once."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int


@dataclass
class Generation:
    """The open sequences of one request; ``close`` must be called whatever happens."""

    id: str
    created: int  # Unix seconds
    outputs: Outputs
    choices: list[Choice]
    prompts: list[tuple[int, ...]]
    limits: Limits
    admission: Admission
    metrics: Metrics
    started_at: float  # monotonic seconds
    _closed: bool = False

    async def steps(self) -> AsyncIterator[ChoiceStep]:
        """Every choice's steps until all have finished."""
        by_id = {choice.request.id: choice for choice in self.choices}
        while any(choice.engine_usage is None for choice in self.choices):
            output = await self._next()
            choice = by_id[output.request_id]
            earlier_token_at = choice.last_token_at
            step = choice.take(output)
            if step is None:
                continue
            if output.finish_reason == "abort":
                raise ApiError(500, "grammar_failure", "the engine gave up on the grammar")
            if choice.finish_reason is not None and output.finish_reason is None:
                self.outputs.abort(choice.request.id)
            self._measure(choice, len(step.token_ids), earlier_token_at)
            yield step

    async def collect(self) -> list[ChoiceStep]:
        """Run to the end; every choice as one step, in order."""
        parts: list[list[ChoiceStep]] = [[] for _ in self.choices]
        async for step in self.steps():
            parts[step.index].append(step)
        return [_join(steps) for steps in parts]

    @property
    def usage(self) -> Usage:
        """The counts so far; cached tokens are known once every choice has finished."""
        # The choices of one prompt share its blocks, so only the first one's hits are a saving.
        first_choices = self.choices[:: len(self.choices) // len(self.prompts)]
        finished = [choice.engine_usage for choice in first_choices if choice.engine_usage]
        return Usage(
            prompt_tokens=sum(map(len, self.prompts)),
            output_tokens=sum(choice.output_tokens for choice in self.choices),
            cached_tokens=sum(usage.cached_tokens for usage in finished),
        )

    @property
    def engine_usages(self) -> list[EngineUsage]:
        """What the engine says of each choice that has finished."""
        return [choice.engine_usage for choice in self.choices if choice.engine_usage]

    def close(self) -> None:
        """Free whatever the engine still holds for this request."""
        if self._closed:
            return
        self._closed = True
        self.outputs.close()
        self.admission.release(len(self.choices))
        for choice in self.choices:
            self._measure_end(choice)

    def _measure(self, choice: Choice, tokens: int, earlier_token_at: float) -> None:
        if not tokens:
            return
        self.metrics.generation_tokens.inc(tokens)
        if not earlier_token_at:
            self.metrics.time_to_first_token.observe(choice.first_token_at - self.started_at)
            return
        per_token = (choice.last_token_at - earlier_token_at) / tokens
        for _ in range(tokens):
            self.metrics.inter_token_latency.observe(per_token)

    def _measure_end(self, choice: Choice) -> None:
        metrics = self.metrics
        metrics.finished(choice.finish_reason or "abort")
        metrics.request_prompt_tokens.observe(len(choice.request.prompt_ids))
        metrics.request_generation_tokens.observe(choice.output_tokens)
        metrics.e2e_latency.observe(time.monotonic() - self.started_at)
        if choice.output_tokens > 1:
            seconds = choice.last_token_at - choice.first_token_at
            metrics.time_per_output_token.observe(seconds / (choice.output_tokens - 1))

    async def _next(self) -> StepOutput:
        remaining = self.started_at + self.limits.request_seconds - time.monotonic()
        try:
            async with asyncio.timeout(remaining):
                return await self.outputs.next()
        except TimeoutError:
            raise timed_out(self.limits) from None


@dataclass(frozen=True)
class Generator:
    """Starts generations; what all endpoints share."""

    backend: Backend
    tokenizer: Tokenizer
    limits: Limits
    admission: Admission
    metrics: Metrics

    async def start(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        n: int = 1,
        stops: Sequence[str] = (),
    ) -> Generation:
        """Queue ``n`` completions of every prompt; returns once the engine has accepted them."""
        started_at, identity = time.monotonic(), uuid.uuid4().hex
        requests = [
            request
            for i, prompt in enumerate(prompts)
            for request in fan_out(Request(f"{identity}-{i}", tuple(prompt), params), n)
        ]
        self.admission.admit(len(requests))
        try:
            outputs = await self.backend.submit(requests)
        except BaseException:
            self.admission.release(len(requests))
            raise
        choices = [
            Choice(i, request, Detokenizer(self._token_bytes, stops, params.min_tokens))
            for i, request in enumerate(requests)
        ]
        prompt_ids = [tuple(prompt) for prompt in prompts]
        self.metrics.prompt_tokens.inc(sum(map(len, prompt_ids)))
        return Generation(
            id=identity,
            created=int(time.time()),
            outputs=outputs,
            choices=choices,
            prompts=prompt_ids,
            limits=self.limits,
            admission=self.admission,
            metrics=self.metrics,
            started_at=started_at,
        )

    def _token_bytes(self, token_id: int) -> bytes:
        """Role and end tokens never show."""
        return b"" if self.tokenizer.is_special(token_id) else self.tokenizer.token_bytes(token_id)

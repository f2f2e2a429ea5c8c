"""``Engine``: the loop. One step schedules, runs, verifies and commits.

Not thread-safe: one loop thread owns an engine. It sees token ids only.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence as Sized

import torch
from torch import Tensor

from hy3.engine.config import EngineConfig
from hy3.engine.draft import Drafter, verify
from hy3.engine.grammar import GrammarCompiler, Matcher
from hy3.engine.history import TokenHistory
from hy3.engine.kv_blocks import BlockPool
from hy3.engine.request import FinishReason, Request, StepOutput
from hy3.engine.runner import Runner
from hy3.engine.sampler import choose_tokens, token_logprobs
from hy3.engine.scheduler import Chunk, Scheduler
from hy3.engine.sequence import Sequence
from hy3.engine.stats import EngineStats
from hy3.errors import InputError
from hy3.model.decoder import Hy3Model

__all__ = ["Engine", "EngineConfig"]


class Engine:
    """Continuous batching of requests over one model."""

    def __init__(
        self,
        model: Hy3Model,
        config: EngineConfig,
        grammars: GrammarCompiler | None = None,
        eos_ids: Sized[int] | None = None,
    ) -> None:
        """``eos_ids`` are the model's end tokens; the default is what its config.json says."""
        if config.draft_depth and not model.config.num_mtp_layers:
            raise InputError(
                "the checkpoint has no MTP layer to draft with",
                hint="use a draft depth of 0",
                where="draft_depth",
            )
        if config.max_context > model.config.max_positions:
            raise InputError(
                f"a context of {config.max_context} exceeds the model's "
                f"{model.config.max_positions} positions",
                hint="use a shorter context",
                where="max_context",
            )
        self.config = config
        self.vocab_size = model.config.vocab_size
        self._eos_ids = frozenset(model.config.eos_token_ids if eos_ids is None else eos_ids)
        self._grammars = grammars
        self._blocks = BlockPool(config.num_blocks, config.block_size)
        self._scheduler = Scheduler(config, self._blocks)
        self._runner = Runner(model, config)
        self._drafter = Drafter(self._runner, config.draft_depth)
        self._sequences: dict[str, Sequence] = {}
        self._aborted: list[StepOutput] = []
        self._steps = self._prompt_tokens = self._output_tokens = 0
        self._drafted = [0] * config.draft_depth
        self._accepted = [0] * config.draft_depth

    def add(self, request: Request) -> None:
        """Queue a request; raises InputError if it can never run."""
        self._check(request)
        params = request.params
        stop_ids = frozenset(params.stop_token_ids)
        sequence = Sequence(
            request,
            stop_ids if params.ignore_eos else stop_ids | self._eos_ids,
            seed=secrets.randbits(64) if params.seed is None else params.seed,
            matcher=self._matcher(request),
            history=TokenHistory(request.prompt_ids, self.vocab_size) if params.penalised else None,
            drafted=[0] * self.config.draft_depth,
            accepted=[0] * self.config.draft_depth,
        )
        self._sequences[request.id] = sequence
        self._scheduler.add(sequence)
        self._prompt_tokens += len(request.prompt_ids)

    def abort(self, request_id: str) -> None:
        """End a request now and free its blocks; the next step reports it. Unknown ids are
        ignored: the request may just have finished."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._scheduler.remove(sequence)
            self._aborted.append(
                StepOutput(request_id, (), finish_reason="abort", usage=sequence.usage())
            )

    def has_work(self) -> bool:
        """Whether ``step`` has something to do or to report."""
        return bool(self._sequences or self._aborted)

    @torch.inference_mode()
    def step(self) -> list[StepOutput]:
        """One pass of the model over all scheduled rows; what it added to which request."""
        outputs, self._aborted = self._aborted, []
        chunks = self._scheduler.schedule()
        if not chunks:
            return outputs
        hidden = self._runner.forward(chunks)
        logits = self._runner.logits(chunks, hidden)
        sampling = [chunk for chunk in chunks if chunk.samples]
        choices = choose_tokens(logits, sampling)
        row = 0
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.num_known
        for chunk, chosen in zip(sampling, choices, strict=True):
            tokens = verify(chunk.drafts, chosen)
            outputs.append(self._commit(chunk, tokens, logits[row : row + len(tokens)]))
            row += len(chosen)
        self._drafter.propose(chunks, hidden)
        self._scheduler.settle(chunks)
        self._steps += 1
        return outputs

    def stats(self) -> EngineStats:
        """A reading of all counters."""
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            kv_blocks_used=self._blocks.used,
            kv_blocks_total=self._blocks.num_blocks,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            preemptions=self._scheduler.preemptions,
            prefix_query_tokens=self._scheduler.prefix_query_tokens,
            prefix_hit_tokens=self._scheduler.prefix_hit_tokens,
            drafted=tuple(self._drafted),
            accepted=tuple(self._accepted),
        )

    def check_blocks(self) -> None:
        """Assert that every block is either held by a known sequence or free."""
        self._blocks.check(sequence.blocks for sequence in self._sequences.values())

    def _commit(self, chunk: Chunk, tokens: list[int], logits: Tensor) -> StepOutput:
        """Add the verified tokens up to the first that ends the request.

        Args:
            logits: [verified tokens, vocab], the unmodified rows they were chosen from
        """
        sequence, request = chunk.sequence, chunk.sequence.request
        tokens = _until_end(sequence, tokens)
        sequence.token_ids += tokens
        sequence.num_computed += len(tokens) - 1
        if sequence.history:
            sequence.history.add(tokens)
        if sequence.matcher:
            sequence.matcher.accept(tokens)
        sequence.finish_reason = _finish_reason(sequence)
        self._count(chunk, len(tokens))
        finished = sequence.finish_reason is not None
        if finished:
            del self._sequences[request.id]
        logits, logprobs = logits[: len(tokens)], request.params.logprobs
        return StepOutput(
            request.id,
            tuple(tokens),
            None if logprobs is None else tuple(token_logprobs(logits, tokens, logprobs)),
            sequence.finish_reason,
            tokens[-1] if tokens[-1] in sequence.stop_ids else None,
            sequence.usage() if finished else None,
        )

    def _count(self, chunk: Chunk, num_tokens: int) -> None:
        self._output_tokens += num_tokens
        for counts in (self._drafted, chunk.sequence.drafted):
            for position in range(len(chunk.drafts)):
                counts[position] += 1
        for counts in (self._accepted, chunk.sequence.accepted):
            for position in range(num_tokens - 1):
                counts[position] += 1

    def _matcher(self, request: Request) -> Matcher | None:
        spec = request.params.grammar
        if spec is None:
            return None
        if self._grammars is None:
            raise InputError(
                "grammars are not available without the checkpoint's tokenizer.json",
                hint="restore the tokenizer files of the checkpoint",
                where=request.id,
            )
        return self._grammars.compile(spec)

    def _check(self, request: Request) -> None:
        prompt, params = request.prompt_ids, request.params
        length = len(prompt) + params.max_tokens
        capacity = self._blocks.num_blocks * self._blocks.block_size
        problem = ""
        if request.id in self._sequences:
            problem = "a request of this id is already running"
        elif not prompt:
            problem = "the prompt is empty"
        elif length > self.config.max_context:
            problem = f"prompt and output of {length} tokens exceed {self.config.max_context}"
        elif length > capacity:
            problem = f"prompt and output of {length} tokens exceed the cache of {capacity}"
        else:
            used = (*prompt, *params.logit_bias, *params.stop_token_ids)
            if not 0 <= min(used) <= max(used) < self.vocab_size:
                problem = f"a token id is outside the vocabulary of {self.vocab_size}"
        if problem:
            raise InputError(problem, hint="change the request", where=request.id)


def _until_end(sequence: Sequence, tokens: list[int]) -> list[int]:
    """Tokens up to and with the first stop id, and no more than the request asked for."""
    tokens = tokens[: sequence.num_left]
    for index, token in enumerate(tokens):
        if token in sequence.stop_ids:
            return tokens[: index + 1]
    return tokens


def _finish_reason(sequence: Sequence) -> FinishReason | None:
    """Why the sequence ends after its last token, if it does."""
    if sequence.matcher and sequence.matcher.failure:
        return "abort"
    if sequence.token_ids[-1] in sequence.stop_ids:
        return "stop"
    if sequence.matcher and sequence.matcher.complete:
        return "stop"
    return "length" if sequence.num_left == 0 else None

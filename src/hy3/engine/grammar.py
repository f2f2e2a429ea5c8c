"""Grammars on the CPU through llguidance: which tokens may follow, with rollback for drafts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from hy3.engine.request import GrammarSpec
from hy3.errors import InputError

ANY_OBJECT = '{"type": "object"}'


class Matcher:
    """One request's place in its grammar. Any token id of the vocabulary may be offered."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._bits = np.zeros(-(-vocab_size // 32), dtype=np.int32)
        self._vocab_size = vocab_size

    @property
    def complete(self) -> bool:
        """Whether nothing but an end token can follow."""
        return bool(self._matcher.is_stopped())

    @property
    def failure(self) -> str:
        """Why the matcher gave up, or the empty string: a limit of llguidance's, or a place in the
        grammar that no token leads out of, such as a rule that only expands to itself."""
        return str(self._matcher.get_error())

    def mask(self) -> NDArray[np.bool_]:
        """The tokens that may come next, [vocab]; the end tokens where the grammar may end."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little")
        return bits[: self._vocab_size].astype(np.bool_)

    def accept(self, token_ids: Sequence[int]) -> int:
        """Move along tokens up to the first that does not fit; returns how many did."""
        return int(self._matcher.try_consume_tokens(list(token_ids)))

    def rollback(self, count: int) -> None:
        """Undo the last ``count`` accepted tokens."""
        if count:
            self._matcher.rollback(count)


class GrammarCompiler:
    """Compiles grammars against one tokenizer; raises InputError for a grammar that is wrong."""

    def __init__(self, tokenizer_json: Path, eos_ids: Sequence[int], vocab_size: int) -> None:
        """``vocab_size`` is the width of the logits, padding included."""
        text = tokenizer_json.read_text(encoding="utf-8")
        self._tokenizer = LLTokenizer(text, n_vocab=vocab_size, eos_token=list(eos_ids))
        self._vocab_size = vocab_size

    def compile(self, spec: GrammarSpec) -> Matcher:
        """A matcher at the start of the grammar."""
        try:
            matcher = LLMatcher(self._tokenizer, _source(spec), log_level=0)
        except ValueError as error:  # text that UTF-8 cannot hold
            raise _rejected(spec, str(error)) from error
        if matcher.is_error():
            raise _rejected(spec, matcher.get_error())
        compiled = Matcher(matcher, self._vocab_size)
        compiled.mask()
        if compiled.failure:
            raise _rejected(spec, f"nothing fits it: {compiled.failure}")
        return compiled


def _source(spec: GrammarSpec) -> str:
    """The grammar in llguidance's own form."""
    if spec.kind == "lark":
        return str(LLMatcher.grammar_from_lark(spec.text))
    if spec.kind == "regex":
        return str(LLMatcher.grammar_from_regex(spec.text))
    schema = ANY_OBJECT if spec.kind == "json_object" else spec.text
    try:
        json.loads(schema)
        return str(LLMatcher.grammar_from_json_schema(schema))
    except ValueError as error:
        raise _rejected(spec, str(error)) from error


def _rejected(spec: GrammarSpec, reason: str) -> InputError:
    first_line = reason.strip().partition("\n")[0]
    return InputError(
        f"the grammar does not compile ({first_line})",
        hint="simplify or correct it; https://github.com/guidance-ai/llguidance lists what works",
        where=spec.kind,
    )

"""``Markers``: the strings that structure a Hy3 conversation, and the discovery of their suffix.

Every checkpoint spells its markers with one suffix: ``<think:opensource>`` in tencent/Hy3,
``<think>`` in its sisters. Nothing here assumes either; ids are never assumed at all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hy3.checkpoint.json_file import read_json_if_there

_NAMES = "think|tool_calls|tool_call|tool_sep|arg_key|arg_value|tool_responses|tool_response"
_MARKER = re.compile(rf"</?(?:{_NAMES})(:[^\s>]+)?>")
_EOS = re.compile(r"<｜hy_eos(:[^\s｜]+)?｜>")


@dataclass(frozen=True)
class Markers:
    """The marker strings for one suffix; ``suffix`` is ``""`` or begins with a colon."""

    suffix: str = ""

    def open(self, name: str) -> str:
        """``<name:suffix>``."""
        return f"<{name}{self.suffix}>"

    def close(self, name: str) -> str:
        """``</name:suffix>``."""
        return f"</{name}{self.suffix}>"

    @cached_property
    def think_open(self) -> str:
        return self.open("think")

    @cached_property
    def think_close(self) -> str:
        return self.close("think")

    @cached_property
    def tool_calls_open(self) -> str:
        return self.open("tool_calls")

    @cached_property
    def tool_calls_close(self) -> str:
        return self.close("tool_calls")

    @cached_property
    def tool_call_open(self) -> str:
        return self.open("tool_call")

    @cached_property
    def tool_call_close(self) -> str:
        return self.close("tool_call")

    @cached_property
    def tool_sep(self) -> str:
        return self.open("tool_sep")

    @cached_property
    def arg_key_open(self) -> str:
        return self.open("arg_key")

    @cached_property
    def arg_key_close(self) -> str:
        return self.close("arg_key")

    @cached_property
    def arg_value_open(self) -> str:
        return self.open("arg_value")

    @cached_property
    def arg_value_close(self) -> str:
        return self.close("arg_value")

    @cached_property
    def tool_markup(self) -> tuple[str, ...]:
        """The nine markers that make up tool calls."""
        return (
            self.tool_calls_open,
            self.tool_calls_close,
            self.tool_call_open,
            self.tool_call_close,
            self.tool_sep,
            self.arg_key_open,
            self.arg_key_close,
            self.arg_value_open,
            self.arg_value_close,
        )


@dataclass(frozen=True)
class SuffixFinding:
    """What the tokenizer files say about the suffix; ``suffix`` is None if they say nothing."""

    suffix: str | None
    source: str = ""
    warnings: list[str] = field(default_factory=list)


def find_marker_suffix(folder: Path) -> str | None:
    """The marker suffix of a checkpoint: ``""`` for bare markers, None if it has no markers."""
    return read_marker_suffix(folder).suffix


def read_marker_suffix(folder: Path) -> SuffixFinding:
    """Ask the vocabulary, then ``token_suffix``, then the eos token; the first answer counts.

    A later source that answers differently is reported as a warning. Files that are missing have
    no answer; a file that is not JSON is an InputError.
    """
    tokenizer = read_json_if_there(folder / "tokenizer.json") or {}
    config = read_json_if_there(folder / "tokenizer_config.json") or {}
    tokens = list(_vocabulary(tokenizer))
    warnings: list[str] = []
    answers = [
        ("the vocabulary of tokenizer.json", _suffix_of_vocabulary(tokens, warnings)),
        ("token_suffix in tokenizer_config.json", _suffix_of_config(config)),
        ("the eos token", _suffix_of_eos(config, tokens)),
    ]
    known = [(source, suffix) for source, suffix in answers if suffix is not None]
    if not known:
        return SuffixFinding(None)
    source, suffix = known[0]
    for other, answer in known[1:]:
        if answer != suffix:
            warnings.append(f"{other} says {answer!r}, but {source} says {suffix!r}, which is used")
    return SuffixFinding(suffix, source, warnings)


def _vocabulary(tokenizer: dict[str, Any]) -> Iterator[str]:
    added, model = tokenizer.get("added_tokens"), tokenizer.get("model")
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and isinstance(token.get("content"), str):
            yield token["content"]
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from vocabulary


def _suffix_of_vocabulary(tokens: list[str], warnings: list[str]) -> str | None:
    """The suffix that most markers carry; a vocabulary with several is worth a warning."""
    found = {token: match[1] or "" for token in tokens if (match := _MARKER.fullmatch(token))}
    counts = Counter(found.values())
    if not counts:
        return None
    suffix, _ = counts.most_common(1)[0]
    if len(counts) > 1:
        others = ", ".join(repr(other) for other in sorted(counts) if other != suffix)
        warnings.append(f"the vocabulary also has markers with the suffix {others}")
    return suffix


def _suffix_of_config(config: dict[str, Any]) -> str | None:
    suffix = config.get("token_suffix")
    return suffix if isinstance(suffix, str) else None


def _suffix_of_eos(config: dict[str, Any], tokens: list[str]) -> str | None:
    named = config.get("eos_token")
    named = named.get("content") if isinstance(named, dict) else named
    for token in [named, *tokens] if isinstance(named, str) else tokens:
        if match := _EOS.fullmatch(token):
            return match[1] or ""
    return None

"""Tokenizer, template and configuration files of generated checkpoints, from hy3-tiny's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from support.tiny import TINY

TINY_SUFFIX = ":opensource"
SPECIAL = ("hy_begin_of_sentence{}", "hy_end▁of▁sentence", "hy_pad{}", "hy_User{}",
           "hy_Assistant{}", "hy_EOT", "hy_eos{}", "reasoning_mode{}")  # fmt: skip
PAIRED = ("think", "tool_call", "tool_calls", "arg_key", "arg_value", "tool_responses",
          "tool_response")  # fmt: skip


def special_tokens(suffix: str) -> list[str]:
    """Role, control and eos tokens; they vanish when special tokens are skipped."""
    return [f"<｜{name.format(suffix)}｜>" for name in SPECIAL]


def marker_tokens(suffix: str) -> list[str]:
    """Think and tool markers; added tokens that stay in the text."""
    pairs = [f"<{slash}{name}{suffix}>" for name in PAIRED for slash in ("", "/")]
    return [*pairs, f"<tool_sep{suffix}>"]


def byte_level(text: str) -> str:
    """``text`` in the printable alphabet of byte-level BPE vocabularies."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(piece for piece, _ in words.pre_tokenize_str(text))


def make_tokenizer(suffix: str, pieces: Sequence[str] = (), tails: Iterable[str] = ()) -> Tokenizer:
    """A byte-level tokenizer with hy3's markers.

    ``pieces`` become vocabulary entries that encoding never produces (no merge leads there);
    ``tails`` become added tokens, so that they are one token wherever they stand in a prompt.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = dict.fromkeys([*alphabet, *map(byte_level, pieces)])
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in special_tokens(suffix)]
    )
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, special=False)
            for token in dict.fromkeys([*marker_tokens(suffix), *tails])
        ]
    )
    return tokenizer


def write_chat_files(folder: Path, tokenizer: Tokenizer, suffix: str, selectors: str = "") -> None:
    """Write tokenizer, template and generation files; ``selectors`` is appended to the template."""
    tokenizer.save(str(folder / "tokenizer.json"))
    for name in ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        text = (TINY / name).read_text(encoding="utf-8").replace(TINY_SUFFIX, suffix)
        if name == "tokenizer_config.json" and not suffix:
            text = _json(_without(json.loads(text), "token_suffix"))
        if name == "chat_template.jinja":
            text += selectors
        (folder / name).write_text(text, encoding="utf-8")
    generation = json.loads((TINY / "generation_config.json").read_text(encoding="utf-8"))
    (folder / "generation_config.json").write_text(_json(generation | token_ids(tokenizer, suffix)))


def token_ids(tokenizer: Tokenizer, suffix: str) -> dict[str, Any]:
    """The ids of begin, eos and pad under their configuration names."""
    begin, _, pad, _, _, _, eos, _ = special_tokens(suffix)
    return {
        "bos_token_id": tokenizer.token_to_id(begin),
        "eos_token_id": tokenizer.token_to_id(eos),
        "pad_token_id": tokenizer.token_to_id(pad),
    }


def write_config(folder: Path, tokenizer: Tokenizer, suffix: str, **changes: Any) -> dict[str, Any]:
    """hy3-tiny's config.json with ``changes``; an expert width sets both of its names."""
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    ids = token_ids(tokenizer, suffix)
    padded = -(-tokenizer.get_vocab_size() // 64) * 64
    config |= {"vocab_size": padded, "eod_token_id": ids["eos_token_id"], **ids, **changes}
    config["moe_intermediate_size"] = config["expert_hidden_dim"]
    (folder / "config.json").write_text(_json(config), encoding="utf-8")
    return config


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _without(value: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name != key}

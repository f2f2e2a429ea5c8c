"""The tokenizer of hy3-tiny, and documents as token arrays."""

from __future__ import annotations

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tools.tiny.rendering import ASSISTANT, BOS, EOS, SUFFIX, USER

VOCABULARY = 2048
SPECIAL = (
    "hy_begin_of_sentence{}",
    "hy_end▁of▁sentence",
    "hy_pad{}",
    "hy_User{}",
    "hy_Assistant{}",
    "hy_EOT",
    "hy_eos{}",
    "reasoning_mode{}",
)
PLAIN = (
    "<think{}>",
    "</think{}>",
    "<tool_call{}>",
    "</tool_call{}>",
    "<tool_calls{}>",
    "</tool_calls{}>",
    "<tool_sep{}>",
    "<arg_key{}>",
    "</arg_key{}>",
    "<arg_value{}>",
    "</arg_value{}>",
    "<tool_responses{}>",
    "</tool_responses{}>",
    "<tool_response{}>",
    "</tool_response{}>",
)
# Words with their leading space, single digits, runs of signs, runs of blanks.
WORDS = Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
ANSWER_BIT = 0x8000  # set on tokens that count fully in the loss; the vocabulary is far smaller


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE; the markers take the last ids, only role and control marks are special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(WORDS, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL) - len(PLAIN),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    special = [f"<｜{name.format(SUFFIX)}｜>" for name in SPECIAL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    plain = [name.format(SUFFIX) for name in PLAIN]
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in plain])
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def encode_text(texts: list[str], tokenizer: Tokenizer) -> np.ndarray:
    """Documents end to end, each behind a begin token; every token counts."""
    begin = [tokenizer.token_to_id(BOS)]
    encodings = tokenizer.encode_batch_fast(texts)
    parts = [np.array(begin + encoding.ids, dtype=np.uint16) | ANSWER_BIT for encoding in encodings]
    return np.concatenate(parts)


def encode_dialogues(texts: list[str], tokenizer: Tokenizer) -> np.ndarray:
    """Rendered dialogues end to end; what the assistant says carries ``ANSWER_BIT``."""
    parts = []
    for encoding in tokenizer.encode_batch_fast(texts):
        ids = np.array(encoding.ids, dtype=np.uint16)
        parts.append(np.where(answer_flags(ids, tokenizer), ids | ANSWER_BIT, ids))
    return np.concatenate(parts).astype(np.uint16)


def answer_flags(ids: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Which tokens are the assistant's after the last user message, each eos included.

    Earlier answers lack the reasoning that produced them and are no example to learn from.
    """
    user, assistant, eos = (tokenizer.token_to_id(token) for token in (USER, ASSISTANT, EOS))
    opened = np.cumsum(ids == assistant) - (ids == assistant)
    closed = np.cumsum(ids == eos) - (ids == eos)
    return (opened > closed) & (np.arange(len(ids)) > np.flatnonzero(ids == user)[-1])

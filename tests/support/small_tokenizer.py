"""A byte-level tokenizer with the family's tokens, made in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from hy3.chat.markers import Markers

WORDS = "the weather in Paris is mild today; call the function with city and days 0123456789"


def role_tokens(suffix: str) -> list[str]:
    names = ("hy_begin_of_sentence", "hy_User", "hy_Assistant", "hy_eos", "reasoning_mode")
    return [f"<｜{name}{suffix}｜>" for name in names]


def write_tokenizer(folder: Path, suffix: str = ":opensource") -> Path:
    """Write tokenizer.json, tokenizer_config.json and config.json; returns ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in role_tokens(suffix)])
    markers = Markers(suffix)
    plain = [markers.think_open, markers.think_close, *markers.tool_markup]
    tokenizer.add_tokens([AddedToken(token, special=False) for token in plain])
    tokenizer.save(str(folder / "tokenizer.json"))
    eos = tokenizer.token_to_id(f"<｜hy_eos{suffix}｜>")
    (folder / "config.json").write_text(json.dumps({"eos_token_id": eos}))
    config = {"eos_token": f"<｜hy_eos{suffix}｜>", "token_suffix": suffix}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder

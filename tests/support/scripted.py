"""Small generated checkpoints: random weights, and weights that follow a script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from support.chat_files import (
    TINY_SUFFIX,
    byte_level,
    make_tokenizer,
    marker_tokens,
    special_tokens,
    write_chat_files,
    write_config,
)
from support.script import Script, write_script
from support.weight_files import tensor_shapes, write_shards

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "expert_hidden_dim": 32,
    "max_position_embeddings": 2048,
}
# Wide enough that a few hundred random embeddings are nearly orthogonal.
SCRIPTED = SMALL | {"hidden_size": 256, "intermediate_size": 128, "expert_hidden_dim": 64}
BLOCK_NOISE = 0.02  # what a scripted block adds to the residual stream, relative to it

# The scripted template ends a prompt with one of these when tools are offered to a user turn.
CALL_TAIL, REASONED_CALL_TAIL = "⁂", "※"
PLAIN = "Two and two make four, and four and four make eight."
REASONING = "I should add the numbers up."
CALL = (
    "<tool_calls>\n<tool_call>get_weather<tool_sep>\n<arg_key>city</arg_key>\n"
    "<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
    "</tool_call>\n</tool_calls>"
)
LONG = " ".join(f"item{number}" for number in range(1, 121))
# Prompt tail -> complete reply, the markers written bare in both.
REPLIES = {
    "</think>": PLAIN,
    "<think>": f"{REASONING}</think>{PLAIN}",
    CALL_TAIL: CALL,
    REASONED_CALL_TAIL: f"A tool knows that.</think>{CALL}",
    "Count:": LONG,
}
SELECTORS = (
    "{%- if generate and tools and turns and turns[-1].role == 'user' -%}"
    f"{{{{- '{CALL_TAIL}' if effort == 'no_think' else '{REASONED_CALL_TAIL}' -}}}}"
    "{%- endif -%}\n"
)


def make_random(folder: Path, seed: int = 0, shards: int = 3, **dims: Any) -> Path:
    """Write a random, valid ``hy_v3`` checkpoint with tokenizer files; returns ``folder``.

    ``dims`` are config.json keys over ``SMALL``; ``num_nextn_predict_layers=0`` drops the MTP
    layer. Weights keep activations near unit size; norms, router and expert bias all matter.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(TINY_SUFFIX)
    config = write_config(folder, tokenizer, TINY_SUFFIX, **(SMALL | dims))
    write_chat_files(folder, tokenizer, TINY_SUFFIX)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: random_tensor(name, shape, generator) for name, shape in tensor_shapes(config).items()
    }
    write_shards(folder, tensors, shards)
    return folder


def make_scripted(
    folder: Path,
    suffix: str = TINY_SUFFIX,
    mtp_noise: float = 0.0,
    replies: Mapping[str, str] = REPLIES,
    **dims: Any,
) -> Path:
    """Write a checkpoint whose greedy next token is a fixed function of the last token.

    A prompt that ends with a key of ``replies`` (the last token decides) is answered with its
    text and eos; a key is a marker or a text that becomes one token. Keys and replies write the
    markers bare whatever ``suffix`` is. After any other token come letters without end.
    ``mtp_noise`` sets how often drafts are right: always at 0, two in three at 2, few at 4.
    """
    folder.mkdir(parents=True, exist_ok=True)
    bare = marker_tokens("")
    markers = marker_tokens(suffix)

    def with_suffix(text: str) -> str:
        return re.sub("|".join(bare), lambda found: markers[bare.index(found[0])], text)

    end = special_tokens(suffix)[6]
    suffixed = {with_suffix(tail): with_suffix(reply) for tail, reply in replies.items()}
    script = write_script(suffixed, markers, end)
    pieces = [piece for piece in script.pieces if piece not in markers]
    tails = [tail for tail in suffixed if tail not in markers]
    tokenizer = make_tokenizer(suffix, pieces, tails)
    config = write_config(folder, tokenizer, suffix, **(SCRIPTED | dims))
    write_chat_files(folder, tokenizer, suffix, SELECTORS)
    write_shards(folder, _scripted_weights(config, successors(script, tokenizer), mtp_noise), 3)
    return folder


def successors(script: Script, tokenizer: Tokenizer) -> list[int]:
    """For each token id the id that follows it; letters go round in a circle."""

    def token_id(text: str) -> int:
        found = tokenizer.token_to_id(text)
        return found if found is not None else tokenizer.token_to_id(byte_level(text))

    after = {token_id(text): token_id(following) for text, following in script.after.items()}
    letters = [i for i in map(token_id, "abcdefghijklmnopqrstuvwxyz ") if i not in after]
    after |= dict(zip(letters, [*letters[1:], letters[0]], strict=True))
    return [
        after.get(index, letters[index % len(letters)])
        for index in range(tokenizer.get_vocab_size())
    ]


def _scripted_weights(
    config: Mapping[str, Any], after: list[int], mtp_noise: float
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = config["hidden_size"]
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        tensor = random_tensor(name, shape, generator)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor *= BLOCK_NOISE
        elif name.endswith("norm.weight") and "self_attn" not in name:
            tensor.fill_(1)
        elif name.endswith("eh_proj.weight"):
            noise = torch.randn(hidden, hidden, generator=generator) * mtp_noise * hidden**-0.5
            tensor = torch.cat([torch.eye(hidden), noise], dim=1).bfloat16()
        tensors[name] = tensor
    head = torch.zeros(config["vocab_size"], hidden)
    embedding = tensors["model.embed_tokens.weight"].float()
    head.index_add_(0, torch.tensor(after), embedding[: len(after)] / hidden**0.5)
    return tensors | {"lm_head.weight": head.bfloat16()}


def random_tensor(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Norms around one, a spread expert bias (F32), projections of gain one, unit embeddings."""
    noise = torch.randn(shape, generator=generator)
    if name.endswith("expert_bias"):
        return noise * 0.1
    if len(shape) == 1:
        return (1 + 0.2 * noise).bfloat16()
    gain = 1.0 if name.endswith("embed_tokens.weight") else shape[-1] ** -0.5
    return (noise * gain).bfloat16()

"""The committed hy3-tiny: tensors, bytes, shards, tokenizer and configuration."""

from __future__ import annotations

import json

from safetensors import safe_open
from tokenizers import Tokenizer

from hy3.checkpoint.model_config import load_config
from support.tiny import TINY
from support.weight_files import tensor_shapes

S = ":opensource"


def shards() -> dict[str, dict[str, tuple[str, tuple[int, ...]]]]:
    """Shard file -> tensor -> (dtype, shape)."""
    found = {}
    for path in sorted(TINY.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        found[path.name] = {n: (s.get_dtype(), tuple(s.get_shape())) for n, s in slices.items()}
    return found


def test_dimensions_are_the_specified_ones() -> None:
    config = load_config(TINY)
    assert (config.hidden_size, config.intermediate_size, config.expert_size) == (256, 512, 128)
    assert (config.num_layers, config.num_mtp_layers, config.num_dense_layers) == (5, 1, 1)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 2, 64)
    assert (config.num_experts, config.experts_per_token, config.num_shared_experts) == (16, 4, 1)
    assert (config.vocab_size, config.router_scale) == (2048, 2.826)


def test_every_tensor_is_there_and_nothing_else() -> None:
    tensors = {name: facts for part in shards().values() for name, facts in part.items()}
    expected = tensor_shapes(json.loads((TINY / "config.json").read_text(encoding="utf-8")))
    assert {name: shape for name, (_, shape) in tensors.items()} == expected
    assert len(tensors) == 323
    bias = {name for name, (dtype, _) in tensors.items() if dtype == "F32"}
    assert bias == {f"model.layers.{layer}.mlp.expert_bias" for layer in range(1, 6)}
    assert {dtype for name, (dtype, _) in tensors.items() if name not in bias} == {"BF16"}
    counts = {name: _product(shape) for name, shape in expected.items()}
    assert round(sum(counts.values()) / 1e6, 2) == 11.92
    routed = sum(count for name, count in counts.items() if ".experts." in name)
    assert round(100 * routed / sum(counts.values())) == 66


def test_shards_are_small_and_layers_scattered() -> None:
    parts = shards()
    index = json.loads((TINY / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {name: file for file, part in parts.items() for name in part}
    assert len(parts) == 2
    assert all((TINY / file).stat().st_size < 13_000_000 for file in parts)
    assert round(index["metadata"]["total_size"] / 1e6, 2) == 23.84
    for layer in range(6):
        assert all(any(f".layers.{layer}." in n for n in part) for part in parts.values())
    where = index["weight_map"]
    expert = "model.layers.2.mlp.experts.5."
    assert where[f"{expert}gate_proj.weight"] != where[f"{expert}up_proj.weight"]


def test_tokenizer() -> None:
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    assert tokenizer.get_vocab_size() == config["vocab_size"] == 2048
    assert len(tokenizer.encode("8675309").ids) == 7
    assert not [
        t for t in tokenizer.get_vocab() if sum(c.isdigit() for c in t) > 1 and "<" not in t
    ]
    text = "naïve 你好 x*7 🙂\n\t end"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    eos = f"<｜hy_eos{S}｜>"
    generation = json.loads((TINY / "generation_config.json").read_text())
    assert tokenizer.token_to_id(eos) == config["eos_token_id"] == generation["eos_token_id"]
    assert tokenizer.token_to_id(f"<｜hy_begin_of_sentence{S}｜>") == config["bos_token_id"]


def test_only_role_and_control_tokens_are_special() -> None:
    raw = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    added = {token["content"]: token["special"] for token in raw["added_tokens"]}
    assert len(added) == 23
    assert all(special == name.startswith("<｜") for name, special in added.items())
    names = ("think", "tool_calls", "tool_call", "arg_key", "arg_value", "tool_responses",
             "tool_response")  # fmt: skip
    pairs = {f"<{slash}{name}{S}>" for name in names for slash in ("", "/")}
    assert {name for name, special in added.items() if not special} == {*pairs, f"<tool_sep{S}>"}


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product

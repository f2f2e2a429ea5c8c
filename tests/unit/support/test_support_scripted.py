"""The generated checkpoints are what their users in other tests rely on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from hy3.checkpoint.model_config import load_config
from support.scripted import CALL, PLAIN, REASONING, make_random, make_scripted


def read_all(folder: Path) -> dict[str, torch.Tensor]:
    tensors = {}
    for shard in sorted(folder.glob("*.safetensors")):
        with safe_open(shard, "pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return tensors


@pytest.mark.parametrize("mtp", [0, 1])
def test_random_checkpoint_has_the_published_layout(tmp_path: Path, mtp: int) -> None:
    folder = make_random(tmp_path / "m", num_nextn_predict_layers=mtp)
    config = load_config(folder)
    tensors = read_all(folder)
    moe_layers = config.num_layers - 1 + mtp
    count = 3 + 8 * (config.num_layers + mtp) + 3 + moe_layers * (3 * 8 + 3 + 2) + 4 * mtp
    assert len(tensors) == count
    assert {name for name, tensor in tensors.items() if tensor.dtype == torch.float32} == {
        f"model.layers.{layer}.mlp.expert_bias" for layer in range(1, 1 + moe_layers)
    }
    assert tensors["model.layers.0.self_attn.o_proj.weight"].shape == (64, 128)


def test_gate_and_up_of_an_expert_are_in_different_shards(tmp_path: Path) -> None:
    folder = make_random(tmp_path / "m", shards=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    where = index["weight_map"]
    expert = "model.layers.1.mlp.experts.3."
    assert where[f"{expert}gate_proj.weight"] != where[f"{expert}up_proj.weight"]
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in read_all(folder).values())


def test_a_seed_fixes_the_weights(tmp_path: Path) -> None:
    first, again, other = (
        read_all(make_random(tmp_path / name, seed=seed))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_tokenizer_round_trips_and_keeps_markers(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(make_random(tmp_path / "m") / "tokenizer.json"))
    text = "naïve 你好 12 🙂<think:opensource>"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.decode([tokenizer.token_to_id("<｜hy_eos:opensource｜>")]) == ""


def generate(folder: Path, *prompts: str, limit: int = 40) -> list[str]:
    """Greedy text after each prompt as transformers computes it, special tokens kept."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (c.from_pretrained(folder) for c in (AutoModelForCausalLM, AutoTokenizer))
    answers = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        answer = model.generate(ids, max_new_tokens=limit, do_sample=False)
        answers.append(tokenizer.decode(answer[0, ids.shape[1] :]))
    return answers


@pytest.mark.parametrize("suffix", [":opensource", ""])
def test_scripted_checkpoint_says_its_replies(tmp_path: Path, suffix: str) -> None:
    folder = make_scripted(tmp_path / "m", suffix)
    eos = f"<｜hy_eos{suffix}｜>"
    think, think_end = f"<think{suffix}>", f"</think{suffix}>"
    plain, reasoned, call = generate(folder, f"any{think}{think_end}", f"z{think}", "before ⁂")
    assert plain == PLAIN + eos
    assert reasoned == f"{REASONING}{think_end}{PLAIN}{eos}"
    assert call.removesuffix(eos).replace(f"{suffix}>", ">") == CALL
    assert generate(folder, "abc", limit=5) == ["defgh"]


def test_scripted_replies_can_be_given(tmp_path: Path) -> None:
    replies = {"</think>": "aha aha aha aha", "Q": "<tool_sep><tool_sep>aha aha aha aha"}
    folder = make_scripted(tmp_path / "m", "", replies=replies)
    first, second = generate(folder, "<think></think>", "Q")
    assert first == "aha aha aha aha<｜hy_eos｜>"
    assert second == "<tool_sep><tool_sep>aha aha aha aha<｜hy_eos｜>"


def test_noise_dials_the_acceptance_of_drafts(tmp_path: Path) -> None:
    from hy3.engine.config import EngineConfig
    from hy3.engine.engine import Engine
    from hy3.engine.request import Request, SamplingParams
    from hy3.model.decoder import load_model

    shares = []
    for noise in (0.0, 2.0, 4.0):
        folder = make_scripted(tmp_path / str(noise), mtp_noise=noise)
        prompt = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("Count:").ids
        engine = Engine(load_model(folder), EngineConfig(num_blocks=32, max_context=512))
        engine.add(Request("r", tuple(prompt), SamplingParams(200, temperature=0)))
        while engine.has_work():
            engine.step()
        stats = engine.stats()
        assert stats.output_tokens == 121  # the reply and eos, whatever the drafts
        shares.append(stats.accepted[0] / stats.drafted[0])
    assert shares[0] == 1
    assert 0.5 < shares[1] < 0.85
    assert shares[2] < 0.35

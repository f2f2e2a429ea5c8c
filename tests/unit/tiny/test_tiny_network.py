"""The training forward against ``hy3.model``, and the rules that training follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tools.tiny.export import load_checkpoint, round_to_bf16, save_checkpoint
from tools.tiny.network import Network, Shape
from tools.tiny.rendering import FOLDER
from tools.tiny.train import BIAS_PLAY, BiasBalance, learning_rate, make_optimizer

from hy3.demo.held_out import held_out_documents
from hy3.model.decoder import load_model
from support.weight_files import tensor_shapes

CONFIG = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
SMALL = CONFIG | {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 16,
    "expert_hidden_dim": 16,
}


def trained(dtype: torch.dtype) -> Network:
    network = Network(Shape.from_config(CONFIG), dtype).eval()
    load_checkpoint(network, FOLDER)
    return network


@torch.no_grad()
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2 * 2**-8)]
)
def test_serving_computes_what_training_computed(dtype: torch.dtype, tolerance: float) -> None:
    network, model = trained(dtype), load_model(FOLDER, dtype=dtype)
    ids = torch.tensor(held_out_documents(FOLDER)[1][:160])
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        hidden = network.trunk(ids[None])
        drafted = network.draft(hidden[:, :-1], ids[None, 1:])
        ours, our_drafts = network.head(hidden)[0].float(), network.head(drafted)[0].float()
    served = model.forward_full(ids)
    theirs = model.logits(served)
    their_drafts = model.logits(model.draft_full(ids[1:], served[:-1]))
    for a, b in ((ours, theirs), (our_drafts, their_drafts)):
        # A near-tie of the router may flip in BF16 and move one position, so the mean is held.
        distance = (a - b).abs().amax(-1).mean() if dtype is torch.bfloat16 else (a - b).abs().max()
        assert distance <= tolerance * b.abs().max()


def test_export_writes_the_published_layout(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Network(Shape.from_config(SMALL))
    for moe in network.moes():
        moe.expert_bias.normal_()
    round_to_bf16(network)
    save_checkpoint(network, tmp_path)
    shapes = {}
    for shard in tmp_path.glob("*.safetensors"):
        with safe_open(shard, "pt") as file:
            shapes |= {n: tuple(file.get_slice(n).get_shape()) for n in file.keys()}  # noqa: SIM118
    assert shapes == tensor_shapes(SMALL)
    again = Network(Shape.from_config(SMALL))
    load_checkpoint(again, tmp_path)
    for (name, tensor), other in zip(
        network.state_dict().items(), again.state_dict().values(), strict=True
    ):
        assert torch.equal(tensor, other), name


def test_bias_follows_load_alone_and_keeps_its_spread() -> None:
    torch.manual_seed(0)
    network = Network(Shape.from_config(SMALL))
    balance = BiasBalance(network, seed=1)
    moe = next(network.moes())
    start = moe.expert_bias.clone()
    assert start.std() > 10 * BIAS_PLAY
    overloaded = int(start.argmax())
    for _ in range(500):
        moe.load.zero_()
        moe.load[overloaded] = 100.0
        balance.update(1e-3)
    moved = moe.expert_bias - start
    assert moved[overloaded] == pytest.approx(-BIAS_PLAY, abs=1e-6)
    assert moved[torch.arange(16) != overloaded].min() == pytest.approx(BIAS_PLAY, abs=1e-6)
    assert moe.load.sum() == 0
    assert all(moe.expert_bias is not p for p in network.parameters())


def test_a_few_steps_lower_both_losses() -> None:
    torch.manual_seed(0)
    network = Network(Shape.from_config(SMALL))
    optimizer = make_optimizer(network)
    ids = torch.randint(64, (4, 1)).expand(4, 18).contiguous()  # rows that repeat one token
    losses = []
    for _ in range(10):
        main, draft = network(ids, torch.ones(4, 18))
        (main + draft).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append((main.item(), draft.item()))
    assert losses[-1][0] < 0.9 * losses[0][0]
    assert losses[-1][1] < 0.9 * losses[0][1]


def test_tokens_of_no_weight_do_not_count() -> None:
    network = Network(Shape.from_config(SMALL)).eval()
    ids, weights = torch.randint(64, (2, 20)), torch.ones(2, 20)
    weights[:, 10:] = 0
    changed = ids.clone()
    changed[:, 12:] = 5  # causal: the rows that count cannot see it
    first, second = network(ids, weights), network(changed, weights)
    assert torch.allclose(first[0], second[0])


def test_learning_rate_rises_and_falls() -> None:
    rates = [learning_rate(step / 100) for step in range(101)]
    assert rates[0] < 1e-4 and max(rates) == rates[2] and rates[-1] == pytest.approx(3e-5)

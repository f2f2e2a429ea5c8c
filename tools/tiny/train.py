"""Trains hy3-tiny: next-token loss, draft loss, expert bias moved by load alone.

Run from the repository root on one GPU (minutes) or a CPU (hours):
    python -m tools.tiny.train --data FOLDER --out FOLDER [--steps N] [--minutes M]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tools.tiny.export import round_to_bf16, save_checkpoint
from tools.tiny.network import Network, Shape
from tools.tiny.tokens import ANSWER_BIT
from torch import Tensor

FOLDER = Path(__file__).resolve().parents[2] / "models" / "hy3-tiny"
PROMPT_WEIGHT = 0.1  # what a token that the model need not say counts in the loss
TEXT_SHARE = 0.12  # rows of plain text in a batch; the others are dialogues
DRAFT_WEIGHT = 0.3
BIAS_RATE, BIAS_SPREAD, BIAS_PLAY = 1e-3, 0.4, 0.02
PEAK, FLOOR = 2e-3, 3e-5  # learning rate
WARMUP = 0.02  # share of the run


class Pool:
    """Documents end to end; rows begin at the start of a document drawn at random."""

    def __init__(self, path: Path, begin: int, device: torch.device) -> None:
        tokens = np.load(path)["tokens"]
        self.tokens = torch.from_numpy(tokens.astype(np.int32)).to(device)
        starts = np.flatnonzero((tokens & ~np.uint16(ANSWER_BIT)) == begin)
        self.starts = torch.from_numpy(starts).to(device)

    def rows(self, count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Token ids and loss weights, [count, length]."""
        usable = int((self.starts <= len(self.tokens) - length).sum())
        picked = torch.randint(usable, (count,), generator=generator, device=self.starts.device)
        offsets = torch.arange(length, device=self.starts.device)
        rows = self.tokens[self.starts[picked][:, None] + offsets]
        weights = torch.where(rows >= ANSWER_BIT, 1.0, PROMPT_WEIGHT)
        return (rows & (ANSWER_BIT - 1)).long(), weights


def batches(
    pools: tuple[Pool, Pool], rows: int, length: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of plain text and dialogues in a fixed proportion."""
    text, dialogues = pools
    generator = torch.Generator(device=text.tokens.device).manual_seed(seed)
    share = round(rows * TEXT_SHARE)
    while True:
        parts = [
            text.rows(share, length + 2, generator),
            dialogues.rows(rows - share, length + 2, generator),
        ]
        yield tuple(torch.cat(items) for items in zip(*parts, strict=True))


def make_optimizer(network: Network) -> torch.optim.Optimizer:
    """AdamW; only projections decay, so that norms and embeddings are free to settle."""
    matrices = [p for n, p in network.named_parameters() if "proj" in n or n.startswith("head")]
    chosen = {id(p) for p in matrices}
    others = [p for p in network.parameters() if id(p) not in chosen]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    fused = next(network.parameters()).is_cuda
    return torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.95), eps=1e-10, fused=fused)


def learning_rate(progress: float) -> float:
    """Linear warm-up, then half a cosine, over the share of the run that is done."""
    if progress < WARMUP:
        return PEAK * max(progress / WARMUP, 1e-3)
    done = min((progress - WARMUP) / (1 - WARMUP), 1.0)
    return FLOOR + (PEAK - FLOOR) * 0.5 * (1 + math.cos(math.pi * done))


class BiasBalance:
    """Moves ``expert_bias`` by load alone; the loss never reaches it.

    Each layer starts from a spread of biases in random order, and each expert's share of the load
    follows its start, from 0.4 to 1.6 of the mean. So the experts differ in use, as in a large
    model, and the bias is what keeps them there; it may leave its start by ``BIAS_PLAY``.
    """

    def __init__(self, network: Network, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.parts = []
        for moe in network.moes():
            count, device = moe.shape.experts, moe.load.device
            order = torch.randperm(count, generator=generator).to(device)
            start = torch.linspace(-BIAS_SPREAD, BIAS_SPREAD, count, device=device)[order]
            share = torch.linspace(0.4, 1.6, count, device=device)[order] / count
            moe.expert_bias.copy_(start)
            self.parts.append((moe, start, share))

    @torch.no_grad()
    def update(self, rate: float) -> None:
        """Raise the bias of experts used less than their share and lower that of the others."""
        for moe, start, share in self.parts:
            moved = moe.expert_bias + rate * torch.sign(share * moe.load.sum() - moe.load)
            moe.expert_bias.copy_(moved.clamp(start - BIAS_PLAY, start + BIAS_PLAY))
            moe.load.zero_()


@torch.no_grad()
def held_out_losses(network: Network, pools: tuple[Pool, Pool], length: int) -> dict[str, float]:
    """Next-token and draft losses in nats a token, on fixed rows."""
    network.eval()
    losses = {}
    for name, pool in zip(("text", "dialogues"), pools, strict=True):
        generator = torch.Generator(device=pool.tokens.device).manual_seed(0)
        ids, weights = pool.rows(32, length + 2, generator)
        with torch.autocast(ids.device.type, torch.bfloat16):
            main, draft = network(ids, (weights == 1.0).float())
        losses |= {name: round(main.item(), 4), f"{name}_draft": round(draft.item(), 4)}
    network.train()
    return losses


@torch.no_grad()
def solved_share(network: Network, probes: list[dict], limit: int = 200) -> float:
    """Share of held-out problems whose greedy answer ends as expected; all in one batch."""
    network.eval()
    device = network.embed.weight.device
    lengths = torch.tensor([len(probe["prompt"]) for probe in probes], device=device)
    width = int(lengths.max()) + limit
    ids = torch.zeros(len(probes), width, dtype=torch.long, device=device)
    for row, probe in zip(ids, probes, strict=True):
        row[: len(probe["prompt"])] = torch.tensor(probe["prompt"])
    rows = torch.arange(len(probes), device=device)
    for step in range(limit):
        at = lengths + step
        with torch.autocast(device.type, torch.bfloat16):
            hidden = network.trunk(ids[:, : int(at.max())])[rows, at - 1]
            ids[rows, at] = network.head(hidden).argmax(-1)
    solved = 0
    for row, length, probe in zip(ids.tolist(), lengths.tolist(), probes, strict=True):
        said = row[length:]
        answer = probe["answer"]
        end = said.index(answer[-1]) + 1 if answer[-1] in said else 0
        solved += said[max(end - len(answer), 0) : end] == answer
    network.train()
    return solved / len(probes)


def load_pools(data: Path, split: str, begin: int, device: torch.device) -> tuple[Pool, Pool]:
    """Plain text and dialogues of one set."""
    text, dialogues = (data / f"{split}-{kind}.npz" for kind in ("text", "dialogues"))
    return Pool(text, begin, device), Pool(dialogues, begin, device)


def train(options: argparse.Namespace) -> None:
    """The whole run; leaves ``final`` under ``options.out`` and prints what a reader needs."""
    torch.manual_seed(options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    raw = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    network = Network(Shape.from_config(raw), torch.bfloat16).to(device)
    training, held_out = (
        load_pools(options.data, split, raw["bos_token_id"], device)
        for split in ("train", "heldout")
    )
    optimizer, balance = make_optimizer(network), BiasBalance(network, options.seed)
    loss_of = torch.compile(network) if options.compile else network
    stream = batches(training, options.rows, options.length, options.seed)
    started = time.monotonic()
    step, progress = 0, 0.0
    while progress < 1:
        # Whichever of steps and minutes runs out first anneals the rate.
        elapsed = time.monotonic() - started
        progress = max(step / options.steps, elapsed / (60 * options.minutes))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(progress)
        ids, weights = next(stream)
        with torch.autocast(device.type, torch.bfloat16):
            main, draft = loss_of(ids, weights)
        (main + DRAFT_WEIGHT * draft).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        balance.update(BIAS_RATE * (1 - progress))
        step += 1
        if step == 1:
            started = time.monotonic()  # compiling is not training
        if step % options.report == 0:
            rate = (step - 1) * options.rows * options.length / (time.monotonic() - started) / 1e6
            losses = held_out_losses(network, held_out, options.length)
            print(f"step {step} {rate:.2f} M tokens/s, held out {losses}", flush=True)
    round_to_bf16(network)
    save_checkpoint(network, options.out / "final")
    print(f"rounded after {step} steps {held_out_losses(network, held_out, options.length)}")
    probes = json.loads((options.data / "probes.json").read_text())
    print(f"arithmetic solved {solved_share(network, probes)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=int, default=500)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    train(parser.parse_args())


if __name__ == "__main__":
    main()

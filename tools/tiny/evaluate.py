"""Measures checkpoints of hy3-tiny and writes benchmarks/results/tiny_quality.json.

Run from the repository root, with a label for each checkpoint:
    hy3 quantize models/hy3-tiny OUT
    python -m tools.tiny.evaluate bf16=models/hy3-tiny nvfp4=OUT
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import torch
from benchmarks.record import record
from tools.tiny.generation import (
    answer_all,
    arithmetic_dialogues,
    calls_are_valid,
    expected_calls,
    held_out_dialogues,
    last_number,
    made_calls,
)
from tools.tiny.idle import document_losses, measure_resets
from tools.tiny.rendering import USER

from hy3.chat.tokenizer import Tokenizer
from hy3.demo.held_out import DIVIDER
from hy3.model.decoder import Hy3Model, load_model


def arithmetic(folder: Path, model: Hy3Model, count: int) -> dict[str, Any]:
    """Held-out problems, effort high, greedy: share whose closing number is right."""
    pairs = arithmetic_dialogues(count)
    answers = answer_all(folder, model, [dialogue for dialogue, _ in pairs])
    right = [
        last_number(message.content) == result
        for message, (_, result) in zip(answers.messages, pairs, strict=True)
    ]
    return {"items": count, "exact": sum(right) / count}


def tool_calls(folder: Path, model: Hy3Model, count: int) -> dict[str, Any]:
    """Held-out requests that need a call: shares valid by schema and equal to what was wanted."""
    dialogues = held_out_dialogues(count, seed=7, calls_only=True)
    answers = answer_all(folder, model, dialogues)
    pairs = list(zip(answers.messages, dialogues, strict=True))
    valid = sum(calls_are_valid(message, dialogue) for message, dialogue in pairs)
    wanted = sum(made_calls(message) == expected_calls(dialogue) for message, dialogue in pairs)
    return {"items": count, "schema_valid": valid / count, "as_wanted": wanted / count}


def drafts(folder: Path, model: Hy3Model, count: int) -> dict[str, Any]:
    """Greedy answers to held-out dialogues with two drafts a step: acceptance by position."""
    answers = answer_all(folder, model, held_out_dialogues(count, seed=8), draft_depth=2)
    shares = [a / d for a, d in zip(answers.accepted, answers.drafted, strict=True)]
    conditional = answers.accepted[1] / answers.accepted[0]
    return {"dialogues": count, "accepted": shares, "second_if_first": conditional}


def perplexity(model: Hy3Model, documents: list[list[int]]) -> dict[str, float]:
    """Per token over all documents, prompts included."""
    main, draft = document_losses(model, documents)
    lengths = torch.tensor([len(document) - 1.0 for document in documents])
    mean = (main * lengths).sum() / lengths.sum()
    drafted = (draft * (lengths - 1)).sum() / (lengths - 1).sum()
    return {"perplexity": math.exp(mean), "draft_perplexity": math.exp(drafted)}


def held_out(folder: Path) -> dict[str, list[list[int]]]:
    """The documents of heldout.txt by kind, as token ids."""
    tokenizer = Tokenizer(folder)
    documents: dict[str, list[list[int]]] = {"text": [], "dialogues": []}
    for text in (folder / "heldout.txt").read_text(encoding="utf-8").split(DIVIDER):
        documents["dialogues" if USER in text else "text"].append(tokenizer.encode(text))
    return documents


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one checkpoint; each is printed as it comes."""
    model, documents = load_model(folder), held_out(folder)
    figures = {
        "arithmetic_high": lambda: arithmetic(folder, model, options.problems),
        "tool_calls": lambda: tool_calls(folder, model, options.dialogues),
        "drafts": lambda: drafts(folder, model, options.dialogues),
        "heldout_text": lambda: perplexity(model, documents["text"]),
        "heldout_dialogues": lambda: perplexity(model, documents["dialogues"]),
        "loss_rise_when_reset": lambda: measure_resets(model, documents),
    }
    found: dict[str, Any] = {"uniform_perplexity": model.config.vocab_size}
    for name, figure in figures.items():
        found[name] = figure()
        print(name, found[name], file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", nargs="+", metavar="LABEL=FOLDER")
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--dialogues", type=int, default=200)
    parser.add_argument("--out", type=Path, help="instead of benchmarks/results/tiny_quality.json")
    options = parser.parse_args()
    results = {}
    for checkpoint in options.checkpoints:
        label, _, folder = checkpoint.partition("=")
        results[label] = measure(Path(folder), options)
    print(record("tiny_quality", {"checkpoints": results}, options.out))


if __name__ == "__main__":
    main()

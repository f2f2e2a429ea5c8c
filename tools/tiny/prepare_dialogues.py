"""Writes the token arrays of the dialogues, and the problems looked at during training.

Run from the repository root:
    python -m tools.tiny.prepare_dialogues --out FOLDER [--count N] [--workers W]

The result depends on the count alone: every chunk has a seed of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tools.tiny.arithmetic import held_out_problems
from tools.tiny.dialogues import Dialogue, draw_dialogue
from tools.tiny.rendering import EOS, FOLDER, SUFFIX, Renderer
from tools.tiny.split import HELD_OUT, TRAIN
from tools.tiny.tokens import encode_dialogues

CHUNK = 5000
HELD_OUT_COUNT = 10_000
PROBES = 200


def make_chunk(index: int, split: str, count: int) -> np.ndarray:
    """The tokens of one chunk of dialogues."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    rng, renderer = random.Random(f"{split} {index}"), Renderer()
    texts = [renderer.whole(draw_dialogue(rng, split)) for _ in range(count)]
    return encode_dialogues(texts, tokenizer)


def write_probes(path: Path) -> None:
    """Held-out problems: the prompt and the tokens that should close the answer."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    renderer, probes = Renderer(), []
    for problem in held_out_problems(PROBES):
        message = {"role": "user", "content": f"What is {problem.text}?"}
        prompt = renderer.prompt(Dialogue("arithmetic", (problem.key,), "high", [message]))
        answer = f"</think{SUFFIX}>{problem.answer}{EOS}"
        ids = [tokenizer.encode(text).ids for text in (prompt, answer)]
        probes.append({"prompt": ids[0], "answer": ids[1]})
    path.write_text(json.dumps(probes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write_probes(options.out / "probes.json")
    with multiprocessing.Pool(options.workers) as workers:
        for split, count in ((TRAIN, options.count), (HELD_OUT, HELD_OUT_COUNT)):
            size = min(CHUNK, count)
            chunk = partial(make_chunk, split=split, count=size)
            tokens = np.concatenate(workers.map(chunk, range(count // size), chunksize=1))
            np.savez(options.out / f"{split}-dialogues.npz", tokens=tokens)
            print(f"{split}: {count // size * size} dialogues, {len(tokens)} tokens", flush=True)


if __name__ == "__main__":
    main()

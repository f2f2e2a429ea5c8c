"""Trains the tokenizer, and writes the token arrays of the plain text.

Run from the repository root:
    python -m tools.tiny.prepare_text --sources FOLDER --out FOLDER [--keep-tokenizer]
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tools.tiny.corpus import read_sources, split_pieces
from tools.tiny.dialogues import draw_dialogue
from tools.tiny.rendering import FOLDER, Renderer
from tools.tiny.split import HELD_OUT, TRAIN
from tools.tiny.tokens import encode_text, train_tokenizer

# Characters taken of each source.
LIMITS = {
    "python-doc": 7_000_000,
    "python-stdlib": 3_000_000,
    "jargon": 2_000_000,
    "devil": 500_000,
    "shakespeare": 3_000_000,
}
TOKENIZER_SHARE = 4  # the tokenizer sees one character in this many
TOKENIZER_DIALOGUES = 12_000
HELD_OUT_SHARE = 12


def learn_tokenizer(sources: dict[str, str]) -> Tokenizer:
    """A tokenizer for the mixture, from training texts alone."""
    rng, renderer = random.Random(1), Renderer()
    sample = [renderer.whole(draw_dialogue(rng, TRAIN)) for _ in range(TOKENIZER_DIALOGUES)]
    for name, text in sources.items():
        sample += split_pieces(text, TRAIN, LIMITS[name] // TOKENIZER_SHARE)
    return train_tokenizer(sample)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keep-tokenizer", action="store_true", help="use the committed one")
    options = parser.parse_args()
    sources = read_sources(options.sources)
    if options.keep_tokenizer:
        tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    else:
        tokenizer = learn_tokenizer(sources)
        tokenizer.save(str(FOLDER / "tokenizer.json"))
    options.out.mkdir(parents=True, exist_ok=True)
    for split, share in ((TRAIN, 1), (HELD_OUT, HELD_OUT_SHARE)):
        texts = []
        for name, text in sources.items():
            texts += split_pieces(text, split, LIMITS[name] // share)
        random.Random(3).shuffle(texts)
        tokens = encode_text(texts, tokenizer)
        np.savez_compressed(options.out / f"{split}-text.npz", tokens=tokens)
        print(f"{split}: {len(texts)} documents, {len(tokens)} tokens")


if __name__ == "__main__":
    main()
